//! GPU time by layer, by kernel, and in copies.

mod copy_columns;
mod draw;
mod kernel_columns;
mod kernel_item;
mod layer_columns;
mod state;

pub use state::TimeScreen;
