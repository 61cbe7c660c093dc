//! Memory by layer, or by the ranges that the program names.

mod columns;
mod draw;
mod item;
mod items;
mod ranges;
mod state;

pub use state::LayersScreen;
