//! Compares the ranks of one job.
//!
//! Each trace is read once and leaves a [`RankSummary`], so a job of 512 ranks never keeps 512 models in memory. [`Job`]
//! compares the summaries: the memory of each rank, the ranks that differ and the memory in which they differ, and the first
//! rank out of memory. This crate knows nothing of terminals and processes.
//!
//! # Layers
//!
//! ```text
//! job                                       the whole comparison, from files
//! ooms                                      the first rank out of memory, and the memory of the others at that time
//! clocks, differences, figures, foreign_contexts    clocks of hosts; differences; spread; contexts on others' devices
//! statistics                                medians
//! summary                                   the stored figures of a rank
//! interned, strip                           names shared by ranks; memory over time in a few figures
//! members, parallel                         grouping traces into jobs; parallel readers
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
