//! Ranks of a job, or other processes, and their devices, side by side and over time.

mod columns;
mod details;
mod draw;
mod heat;
mod imbalance;
mod item;
mod items;
mod job_time;
mod state;
mod style;

pub use columns::RankColumn;
pub use heat::HeatScale;
pub use imbalance::Imbalance;
pub use item::RankItem;
pub use items::device_items;
pub use state::RanksScreen;
pub use style::{draw_bar, imbalance_words, state_style};
