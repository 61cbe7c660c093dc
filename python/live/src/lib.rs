//! The live books of a recorded process: its current memory, computed inside the process from the lines that it records.
//!
//! The sums are those of [`memlab_trace::Model`], which the viewer uses too, so each figure has one definition. This crate
//! does not depend on Python or on the way the lines are read.
//!
//! - [`Books`]: the current state, with watches and line profiles that are fed with the same records.
//! - [`Watch`]: the peak of a block of code, and the memory in use at its start.
//! - [`LineProfile`]: figures by line of chosen functions.
//!
//! # Layers
//!
//! ```text
//! books                 hands each record to model, watches and profiles, in the order of lines and marks
//! line_profile, watch
//! allocator_stats       PyTorch's counters, from events
//! mark                  moments in the program between records
//! ```

#![warn(missing_docs)]

mod allocator_stats;
mod books;
mod line_profile;
mod mark;
mod watch;

pub use allocator_stats::{AllocatorStats, COUNTERS, Counters, POOLS};
pub use books::{Books, WrongVersion};
pub use line_profile::{Function, LineFigures, LineProfile};
pub use mark::{Mark, Moment, Sample};
pub use watch::{Watch, WatchedLine};
