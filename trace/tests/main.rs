//! Records, readers and the model.
//!
//! One binary for all integration tests of the crate: each binary would link the whole crate again.

mod accumulation;
mod categories;
mod common;
mod format;
mod forwards;
mod fuzz_seeds;
mod gpu_work;
mod holders;
mod memory;
mod model_limits;
mod model_reference;
mod model_stories;
mod reading;
mod reference;
mod seekable;
mod snapshot_replay;
