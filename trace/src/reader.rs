//! Reading trace files: whole ones, plain or compressed, and ones that still grow.

mod feed;
mod follow;

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

pub use feed::{Skipped, SkippedLine};
pub use follow::{Follower, Polled};

use crate::model::Model;
use crate::record::FORMAT;
use feed::{Feed, FirstLine};

/// How much is read at once.
const BUFFER: usize = 1 << 20;

/// What is longer is no line.
const LONGEST_LINE: usize = 16 << 20;

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
            Self::Io { path, source } => write!(f, "{}: cannot be read: {source}", path.display()),
        }
    }
}

impl std::error::Error for ReadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// The file in which a trace goes on while it is being cut down, if its writer died then. A file left there by another
/// process is none of it.
fn beside(path: &Path, model: &Model) -> Option<File> {
    let mut name = path.as_os_str().to_owned();
    name.push(".next");
    let file = File::open(name).ok()?;
    let modified = file.metadata().ok()?.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    (modified.as_nanos() >= u128::from(model.header()?.start_unix_ns)).then_some(file)
}

fn is_zstd(start: &[u8]) -> bool {
    start.starts_with(&[0x28, 0xb5, 0x2f, 0xfd])
}

/// Reads a whole trace, plain or compressed with zstd (by its content, not its name).
///
/// `progress` is called every MiB or so, and at the end; if it breaks, what was read until then is returned. What was reserved
/// but never written is passed over; garbled lines are passed over and counted.
///
/// # Errors
///
/// If the file cannot be read, is empty, is not a trace, or was made by a newer memlab.
pub fn load(path: &Path, progress: &mut dyn FnMut(Progress) -> ControlFlow<()>) -> Result<Loaded, ReadError> {
    let io_error = |source| ReadError::Io { path: path.to_owned(), source };
    let mut file = File::open(path).map_err(io_error)?;
    let bytes_total = file.metadata().map_err(io_error)?.len();
    let mut start = Vec::with_capacity(4);
    file.by_ref().take(4).read_to_end(&mut start).map_err(io_error)?;
    if start.is_empty() {
        return Err(ReadError::Empty { path: path.to_owned() });
    }
    let is_compressed = is_zstd(&start);
    let mut source = Counted { source: io::Cursor::new(start).chain(file), read: 0 };
    let report = |read: u64, model: &Model| Progress { bytes_read: read, bytes_total, events: model.events() };
    if is_compressed {
        let mut decoder = zstd::Decoder::new(&mut source).map_err(io_error)?;
        read_lines(path, &mut decoder, |decoder, model| progress(report(decoder.get_ref().get_ref().read, model)))
    } else {
        read_lines(path, &mut source, |source, model| progress(report(source.read, model)))
    }
}

fn read_lines<R: Read>(
    path: &Path,
    source: &mut R,
    mut progress: impl FnMut(&R, &Model) -> ControlFlow<()>,
) -> Result<Loaded, ReadError> {
    let first_line = |error| ReadError::first_line(path, error);
    let mut loaded = Loaded { model: Model::new(), skipped: Skipped::default(), truncated: false, cancelled: false };
    let mut feed = Feed::default();
    let mut buffer = vec![0; BUFFER];
    let mut filled = 0;
    // In a line too long to be one, up to its newline.
    let mut discarding = false;
    let mut next_report = BUFFER as u64;
    loop {
        let read = match source.read(&mut buffer[filled..]) {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            // The end of a compressed file that was cut, or damage in it: what came before still counts.
            Err(error) if feed.has_header && error.kind() != io::ErrorKind::IsADirectory => {
                loaded.truncated = true;
                break;
            }
            Err(source) => return Err(ReadError::Io { path: path.to_owned(), source }),
        };
        if read == 0 {
            break;
        }
        filled += read;
        let mut consumed = 0;
        if discarding {
            consumed = memchr::memchr(b'\n', &buffer[..filled]).map_or(filled, |length| length + 1);
            discarding = consumed == filled && buffer[filled - 1] != b'\n';
            feed.pass(consumed);
        }
        consumed += feed.feed(&buffer[consumed..filled], usize::MAX, &mut loaded.model).map_err(first_line)?.consumed;
        buffer.copy_within(consumed..filled, 0);
        filled -= consumed;
        if filled == buffer.len() {
            if buffer.len() < LONGEST_LINE {
                buffer.resize(buffer.len() * 2, 0);
            } else {
                if !feed.has_header {
                    return Err(first_line(FirstLine::NotATrace));
                }
                feed.overlong();
                feed.pass(filled);
                filled = 0;
                discarding = true;
            }
        }
        if feed.offset >= next_report {
            next_report = feed.offset + BUFFER as u64;
            if progress(source, &loaded.model).is_break() {
                loaded.cancelled = true;
                break;
            }
        }
    }
    if !loaded.cancelled {
        loaded.cancelled = progress(source, &loaded.model).is_break();
    }
    if !loaded.cancelled && !discarding {
        let rest = &buffer[..filled];
        if !feed.has_header && feed.offset == 0 && rest.starts_with(b"{\"memlab\":") && !rest.ends_with(b"}") {
            return Err(ReadError::NoFirstLine { path: path.to_owned() });
        }
        loaded.truncated |= feed.finish(rest, &mut loaded.model).map_err(first_line)?;
        if !feed.has_header {
            let path = path.to_owned();
            return Err(if loaded.truncated { ReadError::NotATrace { path } } else { ReadError::Empty { path } });
        }
    }
    loaded.skipped = feed.skipped;
    Ok(loaded)
}

/// Counts what is read.
struct Counted<R> {
    source: R,
    read: u64,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.source.read(buffer)?;
        self.read += read as u64;
        Ok(read)
    }
}
