//! Readers of trace files: whole ones, plain or compressed, and ones that still grow.

mod checkpoints;
mod chunks;
mod error;
mod file;
mod follow;
mod limits;
mod lines;
mod progress;
mod seekable;
mod source;
mod whole;

pub use error::ReadError;
pub use file::{open_file, open_file_no_follow, read_header, read_header_at};
pub use follow::{Follower, Polled};
pub use lines::{ReadPosition, Skipped, SkippedLine};
pub use progress::{Extent, Loaded, Progress, ReadSummary};
pub use seekable::{SeekOutcome, SeekableReplay};
pub use whole::{load, load_whole, read_whole};
