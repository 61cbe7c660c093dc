//! Reading trace files: whole ones, plain or compressed, and ones that still grow.

mod feed;
mod file;
mod follow;
mod seekable;
mod whole;

use std::fmt;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

pub use feed::{Skipped, SkippedLine};
pub use file::{open_file, open_file_no_follow, read_header};
pub use follow::{Follower, Polled};
pub use seekable::{FollowerPosition, SeekOutcome, SeekTarget, SeekableReplay};
pub use whole::{load, load_whole, read_whole};

use crate::model::Model;
use crate::record::{FORMAT, Record};
use feed::FirstLine;
use file::beside;
use whole::MOST_EXPANSION;

/// How much is read at once.
const BUFFER: usize = 1 << 20;

/// What is longer is no line.
const LONGEST_LINE: usize = 16 << 20;

/// Takes the records of a trace, one after the other.
pub trait Sink {
    /// Takes the next record. `Break`: it wants neither this one nor what follows.
    fn take(&mut self, record: Record<'_>) -> ControlFlow<()>;

    /// The state by what was taken.
    fn model(&self) -> &Model;

    /// The trace begins anew: forgets what was taken.
    fn restart(&mut self);
}

impl Sink for Model {
    #[inline]
    fn take(&mut self, record: Record<'_>) -> ControlFlow<()> {
        self.apply(record);
        ControlFlow::Continue(())
    }

    fn model(&self) -> &Model {
        self
    }

    fn restart(&mut self) {
        *self = Self::new();
    }
}

/// How much of a trace there is to read: up to `offset` of its file, or of the one beside it in which it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Whether the trace's own file is read to its end, and `offset` is in the one beside it.
    pub in_continuation: bool,
    /// Bytes.
    pub offset: u64,
}

impl Extent {
    /// All there is.
    pub const WHOLE: Self = Self { in_continuation: true, offset: u64::MAX };
}

/// A trace, read.
pub struct Loaded {
    /// The state at its end.
    pub model: Model,
    /// Garbled lines passed over.
    pub skipped: Skipped,
    /// Whether it ends in the middle of a line, or of a compressed frame.
    pub truncated: bool,
    /// Whether the progress callback broke off.
    pub cancelled: bool,
}

impl Loaded {
    /// A state, and what was met on the way to it.
    pub fn new(model: Model, through: ReadSummary) -> Self {
        let ReadSummary { skipped, truncated, cancelled } = through;
        Self { model, skipped, truncated, cancelled }
    }
}

/// What was met while a trace was read; as in [`Loaded`].
#[derive(Clone, Debug, Default)]
pub struct ReadSummary {
    /// Garbled lines passed over.
    pub skipped: Skipped,
    /// Whether it ends in the middle of a line, or of a compressed frame.
    pub truncated: bool,
    /// Whether the progress callback broke off.
    pub cancelled: bool,
}

/// How far reading has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the file read.
    pub bytes_read: u64,
    /// Bytes of the file.
    pub bytes_total: u64,
    /// Events replayed.
    pub events: u64,
}

/// Why a file cannot be read as a trace. Its text is for the user.
#[derive(Debug)]
pub enum ReadError {
    /// There is nothing in it.
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// Its first line is not a trace's.
    NotATrace {
        /// The file.
        path: PathBuf,
    },
    /// It ends within its first line.
    NoFirstLine {
        /// The file.
        path: PathBuf,
    },
    /// It was made by a newer memlab.
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        format: u32,
    },
    /// It is compressed, and so cannot be followed.
    Compressed {
        /// The file.
        path: PathBuf,
    },
    /// It is compressed, and expands beyond what any trace would.
    Expands {
        /// The file.
        path: PathBuf,
    },
    /// The system does not let it be read.
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

impl ReadError {
    fn first_line(path: &Path, error: FirstLine) -> Self {
        let path = path.to_owned();
        match error {
            FirstLine::NotATrace => Self::NotATrace { path },
            FirstLine::Newer(format) => Self::Newer { path, format },
        }
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty { path } => write!(
                f,
                "{}: the trace is empty: the process ended before its first CUDA allocation was written",
                path.display()
            ),
            Self::NotATrace { path } => write!(
                f,
                "{}: not a memlab trace: give a .jsonl or .jsonl.zst file that `memlab run` or libmemlab.so has written",
                path.display()
            ),
            Self::NoFirstLine { path } => {
                write!(f, "{}: the trace ends within its first line: there is nothing to show", path.display())
            }
            Self::Newer { path, format } => write!(
                f,
                "{}: made by a newer memlab (format {format}, this one reads up to {FORMAT}): upgrade memlab to read it",
                path.display()
            ),
            Self::Compressed { path } => write!(
                f,
                "{}: a compressed trace cannot be followed while it grows: use `memlab report` on it",
                path.display()
            ),
            Self::Expands { path } => write!(
                f,
                "{}: expands to more than {MOST_EXPANSION} times its size, as no trace does, and is not read any further: if you trust \
                 it, decompress it with `zstd -d` and use that",
                path.display()
            ),
            Self::Io { path, source } => write!(f, "{}: cannot be read: {source}", path.display()),
        }
    }
}

/// Its text already says what the system said, so that it names no source to be said again.
impl std::error::Error for ReadError {}

fn is_zstd(start: &[u8]) -> bool {
    start.starts_with(&[0x28, 0xb5, 0x2f, 0xfd])
}
