//! The `memlab` command: `run`, `top`, `view`, `ps`, `report`, over one dashboard and one model.

pub mod app;
pub mod cli;
pub mod commands;
pub mod control;
pub mod export;
pub mod fault;
pub mod feed;
pub mod format;
pub mod report;
pub mod run;
pub mod screen;
pub mod session;
pub mod signals;
pub mod snapshot;
pub mod terminal;
pub mod text;
pub mod theme;
pub mod view;
