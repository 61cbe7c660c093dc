//! The ranks of a job, or other processes, and their devices: side by side and over time.

mod columns;
mod course;
mod details;
mod draw;
mod heat;
mod imbalance;
mod item;
mod items;
mod look;
mod state;

pub use columns::RankColumn;
pub use heat::HeatScale;
pub use imbalance::Imbalance;
pub use item::RankItem;
pub use items::device_items;
pub use look::{draw_bar, imbalance_words, state_style};
pub use state::RanksScreen;
