//! The encoder: one function per record, each of which writes one line into a buffer on the stack.
//!
//! It serves the hooks inside a traced process: nothing here allocates, panics, takes a lock or calls a hooked function.
//! Every function returns the finished line, including the newline. A string too long for the buffer is cut and ends in `…`,
//! so that the line is always valid JSON. An empty slice means that the buffer is too small for any line. Text is given as
//! bytes; invalid UTF-8 becomes U+FFFD.

mod buffer;
mod definitions;
mod events;
mod holders;

pub use buffer::LineBuffer;
pub use definitions::*;
pub use events::*;
pub use holders::{failed_search, holder_search, holders, holders_part};
