//! Connects the simulated driver and runtime to the simulated CUPTI, which observes calls and work on the device.
//!
//! Both hold a [`Slot`] and export a function that puts CUPTI's [`Observer`] into it: [`OBSERVE_DRIVER`] and
//! [`OBSERVE_RUNTIME`]. They do not depend on CUPTI. While the slot is empty, a call costs one atomic load.
//!
//! # Layers
//!
//! ```text
//! slot    the place of an observer
//! task    work of the device
//! ```

mod slot;
mod task;

pub use slot::{Call, OBSERVE_DRIVER, OBSERVE_RUNTIME, Observe, Observer, Slot};
pub use task::{Arithmetic, Dimensions, GraphNode, MemoryKind, SIMULATED_CODE, Speeds, Submitted, Task, UNITS, Unit};
