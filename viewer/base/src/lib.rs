//! Code shared by the screens, the reports and the commands: text, categories, findings, filters, moments.
//!
//! # Layers
//!
//! ```text
//! trace_moment                                                     a trace at a moment
//! findings, json, kernels, moment, trace_files                     findings; rows; kernel times; named moments; trace files
//! arguments, filter, progress, save, simulation, preload           shared arguments; row filters; simulated cards; preload
//! file_names                                                       short names of source files
//! parallel, ranges                                                 ranks in meshes and pipelines; named ranges
//! output, query, table                                            standard output and error, safe for terminals; tables
//! layer_groups, theme
//! holdings
//! category, clock, error, layer_tree, resample, signals, source_file, text
//! shared_library                                                   libraries opened by name
//! ```

pub mod arguments;
pub mod category;
pub mod clock;
pub mod error;
pub mod file_names;
pub mod filter;
pub mod findings;
pub mod holdings;
pub mod json;
pub mod kernels;
pub mod layer_groups;
pub mod layer_tree;
pub mod moment;
pub mod output;
pub mod parallel;
pub mod preload;
pub mod progress;
pub mod query;
pub mod ranges;
pub mod resample;
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
