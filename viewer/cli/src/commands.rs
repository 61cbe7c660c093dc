//! The commands, one file each: options and implementation.

pub mod advise;
pub mod completions;
pub mod config;
pub mod diff;
pub mod doctor;
pub mod export;
pub mod fit;
pub mod holders;
pub mod limit;
pub mod offload;
pub mod plan;
pub mod ps;
pub mod report;
pub mod restore;
pub mod serve;
pub mod simulate;
pub mod top;
pub mod view;
