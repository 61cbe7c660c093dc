//! The commands that look at traced processes and their traces: one file each.

pub mod config;
pub mod diff;
pub mod export;
pub mod limit;
pub mod offload;
pub mod ps;
pub mod restore;
pub mod top;
pub mod view;
