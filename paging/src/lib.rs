//! Runs models whose weights are larger than the device's memory.
//!
//! One host [`Arena`] holds all weights. A [`Pipeline`] copies them to the device in the order of the forward pass, ahead of the
//! compute, across the end of one forward into the next, and never makes the host wait. The [planner](plan::plan) chooses which
//! units stay on the device, and which part of the ring each other unit is copied to.
//!
//! Four layers through a ring with room for one, on the host:
//!
//! ```
//! use std::sync::Arc;
//!
//! use memlab_paging::pipeline::no_lock_held;
//! use memlab_paging::{Arena, ByteRange, Configuration, DeviceMemory, Pipeline, Stream, WeightRange};
//!
//! # fn main() -> memlab_paging::Result<()> {
//! let arena = Arc::new(Arena::new(4 * 512)?);
//! let weights: Vec<u8> = (0..4 * 512).map(|byte| (byte / 512) as u8).collect();
//! // SAFETY: the vector is alive, and no other thread writes to it.
//! unsafe { arena.fill(0, weights.as_ptr() as u64, 4 * 512)? };
//! let device = DeviceMemory::new(None, 512)?;
//! let pipeline = Pipeline::new(arena, None, None)?;
//! let configuration = Configuration {
//!     units: (0..4)
//!         .map(|layer| vec![WeightRange { arena: ByteRange::new(layer * 512, 512), device_address: device.address() }])
//!         .collect(),
//!     placements: vec![Some(ByteRange::new(0, 512)); 4],
//!     schedule: (0..4).map(|layer| (layer, vec![layer as u32])).collect(),
//!     ..Configuration::default()
//! };
//! // SAFETY: the memory outlives the pipeline.
//! unsafe { pipeline.configure(configuration, Stream(0))? };
//! let mut session = pipeline.session();
//! for layer in 0..4 {
//!     session.enter(layer, Stream(0), &mut no_lock_held)?;
//!     let mut byte = [0];
//!     device.read(511, &mut byte)?; // The layer's compute.
//!     assert_eq!(byte, [layer as u8]);
//! }
//! session.leave(Stream(0))?;
//! # drop(pipeline);
//! # Ok(())
//! # }
//! ```
//!
//! # Layers
//!
//! ```text
//! pipeline                                    copies in the order of the forward
//! pipeline::session                           one thread's calls
//! pipeline::capture                           forwards captured into a CUDA graph
//! pipeline::prefetch                          loads ahead
//! pipeline::cursor                            where a thread is in the schedule, and what it holds
//! pipeline::core                              what all threads of a pipeline use
//! pipeline::ring, pipeline::timing            which units are on the device; how long points compute
//! pipeline::checked_configuration, pipeline::counters, pipeline::unit_set
//! pipeline::configuration, pipeline::unlocked
//! offload_stream                                        copies to the host and back, for activations
//! offload_stream::host_ranges                                the host memory of these
//! events                                      a pool of events
//! recomputation                               what to compute again instead of copying it
//! memory, plan                                device memory; which units stay, and where the others go
//! plan::solve                                 searches layouts
//! plan::refine                                improves one
//! plan::candidates, plan::evaluate            layouts to try; what one comes to
//! plan::placement, plan::simulate             places in the ring; the time of a forward
//! plan::problem
//! plan::outcome
//! sharing                                     host memory that several processes hold once
//! sharing::handing, sharing::listener, sharing::names
//! arena                                       host memory, pinned
//! arena::pinning
//! arena::mapping
//! arena::shared_part                          what several processes map
//! arena::memory_file
//! backend                                     what copies: CUDA, or a thread of the host
//! backend::cuda, backend::host
//! backend::interface
//! cuda_driver, checkpoint                     the driver's functions; safetensors files
//! parallel, pieces                            in which pieces a unit is copied over others
//! error, range
//! ```

#![warn(missing_docs, clippy::missing_errors_doc)]

pub mod arena;
pub mod backend;
pub mod checkpoint;
pub mod cuda_driver;
pub mod error;
mod events;
pub mod memory;
pub mod offload_stream;
mod parallel;
mod pieces;
pub mod pipeline;
pub mod plan;
mod range;
pub mod recomputation;
pub mod sharing;

pub use arena::Arena;
pub use backend::{Backend, Event, Stream, Transfer};
pub use error::{Error, Result};
pub use memory::DeviceMemory;
pub use pipeline::{Configuration, Pipeline, Session, WeightRange};
pub use range::ByteRange;
pub use sharing::HostShare;
