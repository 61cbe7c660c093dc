//! Following traces while programs run: the feed, snapshots as plain values, notices, and offloads.
//!
//! # Layers
//!
//! ```text
//! feed                                                             the thread that follows traces
//! notices                                                          notifications about a running program
//! request                                                          requests from keys to the dashboard's loop
//! offload                                                          moving GPU memory to the host: the thread of the dashboard
//! holders                                                          searches for what holds the memory of a running program
//! snapshot                                                         data for the screens, as plain values
//! cards                                                            load, temperature and power of the cards
//! offload::checkpoint, offload::operation, offload::selection
//! offload::control                                                 the socket of a traced process
//! offload::cuda_driver
//! ```

pub mod cards;
pub mod feed;
pub mod holders;
pub mod notices;
pub mod offload;
pub mod request;
pub mod snapshot;
