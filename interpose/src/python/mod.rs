//! The Python in this process: whose stacks are read, and in which a small agent names what was seen and says where the
//! program's code is.

pub mod agent;
mod api;
pub mod layout;
pub mod lines;
mod native;
pub mod probe;
mod program;
mod running_agent;
mod sources;
mod stacks;
pub mod state;
mod step_hook;
pub mod walk;
