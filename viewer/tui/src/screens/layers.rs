//! Memory by layer, or by the ranges that the program names.

mod columns;
mod draw;
mod item;
mod ranges;
mod state;
mod tree;

pub use columns::compare_layer_names;
pub use item::LayerItem;
pub use state::LayersScreen;
pub use tree::OpenLayers;
