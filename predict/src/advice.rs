//! Advice: changes to a program that lower its GPU memory.
//!
//! A rule takes a recorded run, changes its allocations as the edit to the program would, and replays the changed run.
//! The reported peak is the result of that replay, not of a rule of thumb. This module does not depend on terminals or
//! processes.

mod advise;
mod allocator_replay;
mod batch;
mod block_lifetimes;
mod cache;
mod candidates;
mod choice;
mod combinations;
mod cost;
mod fit;
mod modules;
mod names;
mod offload;
mod report;
mod rules;
mod times;

pub use advise::advise;
pub use cost::Cost;
pub use fit::{FitModule, MeasuredCosts, Recomputation, activation_bytes, recomputation};
pub use report::{Advice, AdviceReport, Batch, Combination, Figure, HostBoundStep, Kind, RejectedAdvice};
pub use rules::leak::Leak;
pub use rules::optimizer::OFFLOADED_STATE;
