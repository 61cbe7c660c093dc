//! The arena, the pipeline and the planner.
//!
//! One binary for all integration tests of the crate: each binary would link the whole crate again.

mod arena;
mod bytes;
mod checkpoint;
mod common;
mod cuda;
mod faults;
mod graphs;
mod offload_stream;
mod plan;
mod reference;
mod schedule;
mod sharing;
mod threads;
