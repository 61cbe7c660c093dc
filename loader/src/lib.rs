//! Runs models whose weights are larger than the device's memory.
//!
//! All weights lie in one host [`Arena`](arena::Arena). A [`Pipeline`](pipeline::Pipeline) copies them to the device in the order
//! of the forward pass, ahead of the compute and around the end of a forward into the next, without ever making the host wait.
//! What stays on the device, and where the rest comes to lie, is the planner's to say.

pub mod arena;
pub mod backend;
pub mod checkpoint;
pub mod driver;
pub mod error;
pub mod memory;
pub mod pipeline;
pub mod plan;

pub use arena::Arena;
pub use backend::{Backend, Event, Stream, Transfer};
pub use error::{Error, Result};
pub use memory::DeviceMemory;
pub use pipeline::{Configuration, Pipeline, Session};
