//! The commands that look at traced processes: one file each.

pub mod ps;
pub mod top;
pub mod view;
