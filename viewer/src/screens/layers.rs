//! Memory by layer.

mod columns;
mod draw;
mod item;
mod items;
mod state;

pub use state::LayersScreen;
