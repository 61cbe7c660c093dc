//! Output of the program.

mod draw;
mod state;
mod typed_bytes;

pub use draw::inner;
pub use state::{OutputScreen, Program};
