//! Real programs on the simulated GPU.
//!
//! One binary for all integration tests of the crate: each binary would link the whole crate again.

mod c_programs;
mod launcher;
mod torch_programs;
