//! State shared by all screens: snapshot, displayed device and moment, filter, units, theme and status line.
//!
//! Each screen receives it as an argument.

mod device_memory;
mod hit_targets;
mod moment;
mod navigation;
mod state;

pub use hit_targets::{HitTarget, HitTargets, TimeScale};
pub use moment::{ChartWindow, ShownMoment};
pub use state::{Context, Target};
