//! The memory map of the caching allocator.

mod cells;
mod cursor;
mod detail;
mod draw;
mod drawn;
mod filtered_block;
mod layout;
mod map;
mod order;
mod pieces;
mod state;
mod style;

pub use pieces::pieces;
pub use state::SegmentsScreen;
