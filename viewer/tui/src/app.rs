//! The dashboard: one of each screen, and what is around them. Keys, the mouse, ticks and data come in; the screen in
//! front and the overlay get them. Nothing here waits.

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
