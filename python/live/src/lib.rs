//! The live books of a recorded process: what its memory is now, inside the process, from the lines that it records.
//!
//! The sums are those of [`memlab_trace::Model`], which the viewer uses too, so no figure has two definitions. This crate knows
//! nothing of Python and of how the lines are read.
//!
//! - [`Books`]: the state now; watches and line profiles, which are fed with the same records.
//! - [`Watch`]: the peak of a block of code, and what was held when it began.
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
