//! How the simulated driver and runtime tell the simulated CUPTI of calls and of work on the device.
//!
//! Both hold a [`Slot`] and export a function that puts CUPTI's [`Observer`] into it: [`OBSERVE_DRIVER`] and
//! [`OBSERVE_RUNTIME`]. They know nothing of CUPTI. While the slot is empty, a call costs one atomic load.
//!
//! # Layers
//!
//! ```text
//! slot    where an observer is put
//! task    what the device does
//! ```

mod slot;
mod task;

pub use slot::{Call, OBSERVE_DRIVER, OBSERVE_RUNTIME, Observe, Observer, Slot};
pub use task::{Dimensions, GraphNode, MemoryKind, Speeds, Submitted, Task};
