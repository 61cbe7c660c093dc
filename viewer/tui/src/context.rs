//! What all screens share: the snapshot, the device and the moment shown, the filter, units, theme and the status line.
//! Each screen gets it as an argument.

mod device_memory;
mod hit_targets;
mod moment;
mod navigation;
mod state;

pub use hit_targets::{HitTarget, HitTargets, TimeScale};
pub use moment::{ChartWindow, ShownMoment};
pub use state::{Context, Target};
