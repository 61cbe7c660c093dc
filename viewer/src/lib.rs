//! The `memlab` command: `run`, `top`, `view`, `ps`, `offload`, `restore`, `limit`, `report`, `diff`, `export`, `config`, over
//! one dashboard and one model.

pub mod app;
pub mod category;
pub mod cli;
pub mod clock;
pub mod commands;
pub mod config;
pub mod diff;
pub mod error;
pub mod export;
pub mod feed;
pub mod filter;
pub mod findings;
pub mod format;
pub mod holdings;
pub mod json;
pub mod moment;
pub mod offload;
pub mod program_screen;
pub mod progress;
pub mod query;
pub mod report;
pub mod run;
pub mod save;
pub mod session;
pub mod signals;
pub mod snapshot;
pub mod source_file;
pub mod terminal;
pub mod text;
pub mod theme;
pub mod trace_files;
pub mod trace_moment;
pub mod view;
