//! Runs models whose weights are larger than the device's memory.
//!
//! One host [`Arena`] holds all weights. A [`Pipeline`] copies them to the device in the order of the forward pass, ahead of
//! the compute and across the end of one forward into the next. It never makes the host wait. The [planner](plan::plan)
//! chooses which units stay on the device, and assigns a part of the ring to every other unit.
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
//! pipeline                                    copies weights in the order of the forward
//! pipeline::session                           calls of one thread
//! pipeline::capture                           forwards captured into a CUDA graph
//! pipeline::prefetch                          loads ahead
//! pipeline::cursor                            position of a thread in the schedule, and the units it holds
//! pipeline::core                              state shared by all threads of a pipeline
//! pipeline::ring, pipeline::timing            units on the device; compute time of points
//! pipeline::checked_configuration, pipeline::counters, pipeline::unit_set
//! pipeline::configuration, pipeline::unlocked
//! offload_stream                              copies activations to the host and back
//! offload_stream::host_ranges                 host memory of these copies
//! events                                      a pool of events
//! recomputation                               tensors to recompute instead of copying
//! memory, plan                                device memory; resident units, and places of the others
//! plan::solve                                 searches layouts
//! plan::refine                                improves one layout
//! plan::candidates, plan::evaluate            layouts to try; time and size of a layout
//! plan::placement, plan::simulate             places in the ring; the time of a forward
//! plan::problem
//! plan::outcome
//! sharing                                     one copy of host memory for several processes
//! sharing::handing, sharing::listener, sharing::names
//! arena                                       host memory, pinned
//! arena::pinning
//! arena::mapping
//! arena::shared_part                          part that several processes map
//! arena::memory_file
//! backend                                     copying: CUDA, or a thread of the host
//! backend::cuda, backend::host
//! backend::interface
//! cuda_driver, checkpoint                     the driver's functions; safetensors files
//! parallel, pieces                            pieces in which a unit is copied over others
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
