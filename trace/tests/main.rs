//! Records, readers and the model.
//!
//! All integration tests of the crate are one program, because each program would link all of it again.

mod accumulation;
mod categories;
mod common;
mod format;
mod fuzz_seeds;
mod gpu_work;
mod memory;
mod model_limits;
mod model_reference;
mod model_stories;
mod reading;
mod reference;
mod seekable;
mod snapshot_replay;
