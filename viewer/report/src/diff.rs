//! Changes between two moments, of one run or of two: memory by category, line and layer, and GPU time of two runs.

mod change;
mod difference;
mod holders;
mod json;
mod layers;
mod lines;
mod ranges;
mod side;
mod text;
mod times;

pub use change::Change;
pub use difference::Difference;
pub use holders::{HolderChange, HolderChanges};
pub use json::write_json;
pub use layers::LayerChange;
pub use lines::{LineChange, Match};
pub use ranges::RangeChange;
pub use side::Side;
pub use text::write_text;
pub use times::{KernelChange, TimeDifference};
