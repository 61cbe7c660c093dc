//! What the screens, the reports and the commands share: text, categories, findings, filters, moments.
//!
//! # Layers
//!
//! ```text
//! trace_moment                                                     a trace at a moment
//! findings, json, kernels, moment, trace_files                     what is found in a run; rows; times of kernels; moments by name; traces of a folder
//! arguments, filter, progress, save, simulation, preload           arguments of several commands; what a filter matches; what a simulated card and libmemlab.so need
//! parallel, ranges                                                 where ranks are in meshes and pipelines, in words; named ranges
//! output, query, table                                            standard output and standard error: text that steers no terminal; tables as text
//! holdings, theme
//! category, clock, error, signals, source_file, text
//! shared_library                                                   libraries that are opened by name
//! ```

pub mod arguments;
pub mod category;
pub mod clock;
pub mod error;
pub mod filter;
pub mod findings;
pub mod holdings;
pub mod json;
pub mod kernels;
pub mod moment;
pub mod output;
pub mod parallel;
pub mod preload;
pub mod progress;
pub mod query;
pub mod ranges;
pub mod save;
pub mod shared_library;
pub mod signals;
pub mod simulation;
pub mod source_file;
pub mod table;
pub mod text;
pub mod theme;
pub mod trace_files;
pub mod trace_moment;
