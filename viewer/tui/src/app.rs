//! The dashboard: all screens, with header, footer and overlays.
//!
//! It receives keys, the mouse, ticks and data, and passes them to the screen in front and the overlay. Nothing here
//! blocks.

mod draw;
mod footer;
mod header;
mod keys;
mod mouse;
mod moving;
mod prompt;
mod prompt_keys;
mod save_screen;
mod state;
mod strip;
mod waiting;

pub use draw::{draw, output_size};
pub use prompt::{Prompt, PromptKind};
pub use save_screen::save;
pub use state::App;
