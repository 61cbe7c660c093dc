//! Runs models whose weights are larger than the device's memory.
//!
//! All weights lie in one host [`Arena`](arena::Arena). A [`Pipeline`](pipeline::Pipeline) copies them to the device in the order
//! of the forward pass, ahead of the compute and around the end of a forward into the next, without ever making the host wait.
//! What stays on the device, and where the rest comes to lie, is the planner's to say.
//!
//! Four layers through a place for one, on the host:
//!
//! ```
//! use std::sync::Arc;
//!
//! use memlab_loader::{Arena, Configuration, DeviceMemory, Pipeline, Stream, pipeline::anywhere};
//!
//! # fn main() -> memlab_loader::Result<()> {
//! let arena = Arc::new(Arena::new(4 * 512)?);
//! let weights: Vec<u8> = (0..4 * 512).map(|byte| (byte / 512) as u8).collect();
//! // SAFETY: the vector lives, and nobody writes to it.
//! unsafe { arena.fill(0, weights.as_ptr() as u64, 4 * 512)? };
//! let device = DeviceMemory::new(None, 512)?;
//! let pipeline = Pipeline::new(arena, None, None)?;
//! let configuration = Configuration {
//!     units: (0..4).map(|layer| vec![(layer * 512, device.address(), 512)]).collect(),
//!     places: vec![Some((0, 512)); 4],
//!     schedule: (0..4).map(|layer| (layer, vec![layer as u32])).collect(),
//!     ..Configuration::default()
//! };
//! // SAFETY: the memory outlives the pipeline.
//! unsafe { pipeline.configure(configuration, Stream(0))? };
//! let mut session = pipeline.session();
//! for layer in 0..4 {
//!     session.enter(layer, Stream(0), &mut anywhere)?;
//!     let mut byte = [0];
//!     device.read(511, &mut byte)?; // The layer's compute.
//!     assert_eq!(byte, [layer as u8]);
//! }
//! session.leave(Stream(0))?;
//! # drop(pipeline);
//! # Ok(())
//! # }
//! ```

pub mod arena;
pub mod backend;
pub mod checkpoint;
pub mod driver;
pub mod error;
pub mod memory;
mod parallel;
pub mod pipeline;
pub mod plan;

pub use arena::Arena;
pub use backend::{Backend, Event, Stream, Transfer};
pub use error::{Error, Result};
pub use memory::DeviceMemory;
pub use pipeline::{Configuration, Pipeline, Session};
