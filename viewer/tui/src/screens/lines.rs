//! Memory by Python line.

mod columns;
mod draw;
mod item;
mod items;
mod state;

pub use columns::LineColumn;
pub use item::LineItem;
pub use state::LinesScreen;
