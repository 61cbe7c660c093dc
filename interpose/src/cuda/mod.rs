//! Hooks on CUDA's allocation calls, at driver level, where every runtime ends up; the runtime's own functions only
//! lend a call its name, and record what no driver-level hook has seen.

pub mod driver;
pub mod driver_memory;
pub mod entry;
mod gated;
pub mod hooks;
pub mod info;
pub mod resolve;
pub mod runtime;
