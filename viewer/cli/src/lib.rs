//! The `memlab` command: `run`, `top`, `view`, `ps`, `offload`, `restore`, `limit`, `simulate`, `doctor`, `report`,
//! `advise`, `fit`, `serve`, `diff`, `export`, `config`, `completions`.
//!
//! All of them share one dashboard and one model.
//!
//! # Layers
//!
//! ```text
//! cli                                                              the command line, and the exit code
//! commands                                                         one file per command
//! fit                                                              making a program fit
//! recording                                                        running a program for a plan
//! doctor                                                           checks of this machine; doctor::check: the result of one
//! run                                                              `memlab run`
//! serve                                                            `memlab serve`: Prometheus metrics and a live page
//! allocator_settings                                               settings of PyTorch's allocator
//! ```

pub mod allocator_settings;
pub mod cli;
pub mod commands;
pub mod doctor;
pub mod fit;
pub mod recording;
pub mod run;
pub mod serve;
