//! The ranks of one job side by side.
//!
//! Each trace is read once and leaves a [`RankSummary`]: a job of 512 ranks is never 512 models in memory. [`Job`] compares the
//! summaries: which rank has how much, which ones differ from the others and in what, and who ran out of memory first. This
//! crate knows nothing of terminals and of processes.
//!
//! # Layers
//!
//! ```text
//! job                                       all of it, from files
//! ooms                                      who ran out of memory first, and what the others held then
//! clocks, differences, figures, foreign_contexts    clocks of hosts; what differs; spread; contexts on others' devices
//! statistics                                medians
//! summary                                   what is kept of a rank
//! interned, strip                           names that ranks share; memory over time in a few figures
//! members, parallel                         which traces are of one job; several readers
//! ```

#![warn(missing_docs, clippy::missing_errors_doc)]

mod clocks;
mod differences;
mod figures;
mod foreign_contexts;
mod interned;
mod job;
mod members;
mod ooms;
mod parallel;
mod statistics;
mod strip;
mod summary;

pub use clocks::HostClock;
pub use differences::{ComparedMemory, Difference, RankBytes};
pub use figures::{Figure, FigureKind, RankValue};
pub use foreign_contexts::ForeignContext;
pub use interned::{Interned, Layer};
pub use job::{Job, MissingRanks, Unreadable};
pub use members::{TraceFile, are_one_job, ranks_of};
pub use ooms::{FirstOom, MemoryAtOom, RankAtOom};
pub use statistics::median;
pub use strip::{STRIP_PARTS, strip};
pub use summary::{DeviceSummary, RankSummary};
