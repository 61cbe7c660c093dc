//! What to change in a program so that it takes less GPU memory.
//!
//! A rule looks at a recorded run, changes its allocations as the program would be changed, and carries the changed run out:
//! what it says of the peak is what came of that, not what a rule of thumb says. This crate knows nothing of terminals and
//! of processes.

mod advise;
mod batch;
mod cache;
mod choice;
mod cost;
mod course;
mod modules;
mod names;
mod offload;
mod piece;
mod replayed;
mod rules;
mod times;
mod together;
mod verdicts;

pub use advise::advise;
pub use cost::Cost;
pub use piece::{Advice, AdviceReport, Batch, Figure, Kind, Together, Tried, WaitsForHost};
pub use rules::leak::Leak;
