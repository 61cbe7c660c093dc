//! Errors of reading a file as a trace.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use super::limits::MAX_EXPANSION;
use memlab_format::record::FORMAT;

/// Error of reading a file as a trace. Its text is for the user.
#[derive(Debug)]
pub enum ReadError {
    /// The file is empty.
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The first line is not that of a trace.
    NotATrace {
        /// The file.
        path: PathBuf,
    },
    /// The file ends within its first line.
    NoFirstLine {
        /// The file.
        path: PathBuf,
    },
    /// A newer memlab wrote the file.
    Newer {
        /// The file.
        path: PathBuf,
        /// Format version of the file.
        format: u32,
    },
    /// The file is compressed, so it cannot be followed.
    Compressed {
        /// The file.
        path: PathBuf,
    },
    /// The file is compressed, and expands more than any trace does.
    Expands {
        /// The file.
        path: PathBuf,
    },
    /// The system cannot read the file.
    Io {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
}

impl ReadError {
    pub(super) fn io(path: &Path, source: io::Error) -> Self {
        Self::Io { path: path.to_owned(), source }
    }

    pub(super) fn first_line(path: &Path, error: FirstLine) -> Self {
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
                "{}: the trace is empty: the process ended before its first CUDA allocation was written; record again, \
                 and read the program's own error output",
                path.display()
            ),
            Self::NotATrace { path } => write!(
                f,
                "{}: not a memlab trace: pass a .jsonl or .jsonl.zst file written by `memlab run` or libmemlab.so",
                path.display()
            ),
            Self::NoFirstLine { path } => {
                write!(f, "{}: the trace ends within its first line and contains no events", path.display())
            }
            Self::Newer { path, format } => write!(
                f,
                "{}: written by a newer memlab (format {format}, this one reads up to {FORMAT}): upgrade memlab",
                path.display()
            ),
            Self::Compressed { path } => write!(
                f,
                "{}: a compressed trace cannot be followed while it grows: use `memlab report` on it",
                path.display()
            ),
            Self::Expands { path } => write!(
                f,
                "{}: expands to more than {MAX_EXPANSION} times its size, unlike any trace: reading stopped. If you trust \
                 it, decompress it with `zstd -d` first",
                path.display()
            ),
            Self::Io { path, source } if source.kind() == io::ErrorKind::NotFound => {
                write!(f, "{}: no such file", path.display())
            }
            Self::Io { path, source } => {
                // Without the number of the system's error: ` (os error 21)`.
                let cause = source.to_string();
                let cause = cause.split(" (os error ").next().unwrap_or(&cause);
                write!(f, "{}: cannot be read: {cause}", path.display())
            }
        }
    }
}

/// The text includes the system's error, so `source` returns none.
impl std::error::Error for ReadError {}

/// Error in the first line of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FirstLine {
    NotATrace,
    Newer(u32),
}
