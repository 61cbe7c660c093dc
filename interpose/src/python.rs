//! Python in this process: reads its stacks, and runs a small agent in it that names modules and tensors and reports
//! where the program's code is.

pub mod agent;
mod compiled;
mod embedded;
mod frame_evaluation;
mod native;
mod program;
mod stacks;
pub mod state;
mod step_hook;
