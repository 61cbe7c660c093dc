//! The format of memlab traces: one record per line of a JSON Lines file.
//!
//! `docs/trace-format.md` describes the format. `memlab-trace`, which replays a trace, re-exports this crate.
//!
//! # Layers
//!
//! ```text
//! decode, encode    one line of a trace, read and written
//! record            the records
//! ```

#![warn(missing_docs, clippy::missing_errors_doc)]

mod decode;
pub mod encode;
pub mod record;

pub use decode::{BlockEvent, DecodeError, decode_block_event, decode_line};
pub use record::Record;
