//! The arena, the pipeline and the planner.
//!
//! One program for all integration tests of the crate, because each program would link all of it again.

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
