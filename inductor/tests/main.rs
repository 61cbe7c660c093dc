//! Reading what the compiler wrote.
//!
//! One program for all integration tests of the crate: each program would link all of it again.

mod definitions;
mod fuzz_seeds;
mod golden;
mod rules;
