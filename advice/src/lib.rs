//! What to change in a program so that it takes less GPU memory.
//!
//! A rule looks at a recorded run, changes its allocations as the program would be changed, and carries the changed run out:
//! what it says of the peak is what came of that, not what a rule of thumb says. This crate knows nothing of terminals and
//! of processes.
//!
//! # Layers
//!
//! ```text
//! advise                      all rules, the best first
//! batch                       how large a batch fits
//! together                    several pieces on one recording
//! rules
//! rules::activations          activations that wait on the host
//! rules::checkpoint           activations that are computed again
//! rules::contexts             devices that are used by mistake
//! rules::gradients            gradients that are kept from step to step
//! rules::loss                 logits and their cross-entropy
//! rules::optimizer            temporaries of steps, and the optimizer's state
//! rules::settings             settings of PyTorch's allocator
//! rules::workspaces           what PyTorch keeps for cuBLAS
//! times                       what the trace says about GPU time
//! cache                       keys and values that models of Hugging Face keep
//! names                       modules and lines, in words and in code
//! modules                     modules of repeated lists and others, and what each pass of them keeps
//! offload                     which activations are on the GPU when others wait on the host
//! verdicts                    what came of the rules
//! choice                      which modules of a pass to checkpoint
//! course                      what is allocated after each event, and after changes
//! advice                      a piece of advice
//! cost                        what one costs
//! ```

#![warn(missing_docs)]

mod advice;
mod advise;
mod batch;
mod cache;
mod choice;
mod cost;
mod course;
mod modules;
mod names;
mod offload;
mod rules;
mod times;
mod together;
mod verdicts;

pub use advice::{Advice, Advices, Batch, Figure, Kind, Together, Tried, WaitsForHost};
pub use advise::advise;
pub use cost::Cost;
