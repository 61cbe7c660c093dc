//! The overview: everything at a glance.

mod categories;
mod chart;
mod draw;
mod ranks;
mod state;
mod step_bars;

pub use draw::OverviewParts;
pub use state::OverviewScreen;
