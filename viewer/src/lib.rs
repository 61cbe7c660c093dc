//! The `memlab` command: `run`, `top`, `view`, `ps`, `offload`, `restore`, `limit`, `report`, `diff`, `export`, `config`, over
//! one dashboard and one model.

pub mod app;
pub mod checkpoint;
pub mod cli;
pub mod commands;
pub mod config;
pub mod control;
pub mod diff;
pub mod driver;
pub mod export;
pub mod fault;
pub mod feed;
pub mod filter;
pub mod findings;
pub mod format;
pub mod holdings;
pub mod json;
pub mod moment;
pub mod mover;
pub mod newest;
pub mod operation;
pub mod progress;
pub mod report;
pub mod run;
pub mod save;
pub mod screen;
pub mod selection;
pub mod session;
pub mod signals;
pub mod snapshot;
pub mod source;
pub mod terminal;
pub mod text;
pub mod theme;
pub mod view;
pub mod want;
