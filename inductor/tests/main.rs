//! Tests of parsing the compiler's output.
//!
//! One binary for all integration tests of the crate: each binary would link the whole crate again.

mod definitions;
mod fuzz_seeds;
mod golden;
mod rules;
