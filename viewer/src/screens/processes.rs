//! All processes and their devices.

mod columns;
mod draw;
mod imbalance;
mod item;
mod items;
mod look;
mod state;

pub use imbalance::Imbalance;
pub use item::ProcessItem;
pub use items::device_items;
pub use look::{draw_bar, imbalance_words, state_style, who};
pub use state::ProcessesScreen;
