//! Python in this process: reads its stacks, and runs a small agent in it.
//!
//! The agent names modules and tensors, and reports the position of the program's code.

pub mod agent;
mod compiled;
mod data_wait;
mod embedded;
mod frame_evaluation;
pub mod holders;
mod native;
mod native_object;
mod program;
mod stacks;
pub mod state;
mod step_hook;
