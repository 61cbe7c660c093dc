//! Python in this process: reads its stacks, and runs a small agent in it that names modules and tensors and reports
//! where the program's code is.

pub mod agent;
mod api;
mod compiled;
mod embedded;
mod frame_evaluation;
pub mod layout;
pub mod lines;
mod native;
pub mod probe;
mod program;
mod running_agent;
mod stacks;
pub mod state;
mod step_hook;
pub mod walk;
