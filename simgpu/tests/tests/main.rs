//! Real programs on the simulated GPU.
//!
//! One program for all integration tests of the crate: each program would link all of it again.

mod c_programs;
mod launcher;
mod torch_programs;
