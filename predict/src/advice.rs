//! What to change in a program so that it takes less GPU memory.
//!
//! A rule looks at a recorded run, changes its allocations as the program would be changed, and carries the changed run out:
//! what it says of the peak is what came of that, not what a rule of thumb says. This crate knows nothing of terminals and
//! of processes.

mod advise;
mod allocator_replay;
mod batch;
mod block_lifetimes;
mod cache;
mod candidates;
mod choice;
mod combinations;
mod cost;
mod modules;
mod names;
mod offload;
mod report;
mod rules;
mod times;

pub use advise::advise;
pub use cost::Cost;
pub use report::{Advice, AdviceReport, Batch, Combination, Figure, HostBoundStep, Kind, RejectedAdvice};
pub use rules::leak::Leak;
