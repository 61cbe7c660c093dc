//! Reading a trace from its beginning to its end.

use std::fs::File;
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::path::Path;

use super::error::{FirstLine, ReadError};
use super::file::{is_zstd, open_continuation, open_file};
use super::limits::{BUFFER, LONGEST_LINE, MAX_EXPANSION};
use super::lines::Feed;
use super::progress::{Loaded, Progress, ReadSummary};
use crate::model::Model;
use crate::sink::Sink;

/// Below this size any expansion is accepted.
const HARMLESS: u64 = 64 << 20;

/// Reads a trace, plain or compressed with zstd (detected by content), with its continuation file (`FILE.next`) if the writer
/// died while cutting it down.
///
/// `progress` is called about every MiB, and at the end; if it breaks, the result is what was read so far. Lines that were
/// reserved but not written are skipped; garbled lines are skipped and counted.
///
/// # Errors
///
/// If the file cannot be read, is empty, is not a trace, was written by a newer memlab, or expands without bound.
pub fn load_whole(path: &Path, progress: &mut dyn FnMut(Progress) -> ControlFlow<()>) -> Result<Loaded, ReadError> {
    let mut model = Model::new();
    let through = read_whole(path, &mut model, progress)?;
    Ok(Loaded::new(model, through))
}

/// As [`load_whole`], with each record given to `sink`. Reading ends where the sink refuses one.
///
/// # Errors
///
/// As [`load_whole`].
pub fn read_whole(
    path: &Path,
    sink: &mut impl Sink,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<ReadSummary, ReadError> {
    let mut reading = read_first(path, sink, progress)?;
    if !reading.through.cancelled
        && !reading.refused
        && let Some(continuation) = open_continuation(path, reading.sink.model())
    {
        reading.feed.start_continuation();
        reading.read_plain(continuation, progress)?;
    }
    Ok(reading.into_through())
}

/// As [`load_whole`], without the continuation file.
///
/// # Errors
///
/// As [`load_whole`].
pub fn load(path: &Path, progress: &mut dyn FnMut(Progress) -> ControlFlow<()>) -> Result<Loaded, ReadError> {
    let mut model = Model::new();
    let through = read_first(path, &mut model, progress)?.into_through();
    Ok(Loaded::new(model, through))
}

fn read_first<'p, S: Sink>(
    path: &'p Path,
    sink: &'p mut S,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<Reading<'p, S>, ReadError> {
    let mut reading = Reading {
        path,
        sink,
        feed: Feed::default(),
        through: ReadSummary::default(),
        refused: false,
        most_line_bytes: u64::MAX,
    };
    let mut file = open_file(path).map_err(|source| reading.io_error(source))?;
    let mut start = Vec::with_capacity(4);
    file.by_ref().take(4).read_to_end(&mut start).map_err(|source| reading.io_error(source))?;
    if start.is_empty() {
        return Err(ReadError::Empty { path: path.to_owned() });
    }
    let metadata = file.metadata().map_err(|source| reading.io_error(source))?;
    let bytes_total = metadata.len();
    let is_compressed = is_zstd(&start);
    if is_compressed && metadata.is_file() {
        reading.most_line_bytes = bytes_total.saturating_mul(MAX_EXPANSION).max(HARMLESS);
    }
    let source = Counted { source: io::Cursor::new(start).chain(file), read: 0 };
    if is_compressed {
        let mut decoder = zstd::Decoder::new(source).map_err(|source| reading.io_error(source))?;
        reading.read(&mut decoder, |decoder, events| {
            progress(Progress { bytes_read: decoder.get_ref().get_ref().read, bytes_total, events })
        })?;
    } else {
        reading.read_counted(source, bytes_total, progress)?;
    }
    Ok(reading)
}

/// A trace being read.
struct Reading<'p, S> {
    path: &'p Path,
    sink: &'p mut S,
    feed: Feed,
    through: ReadSummary,
    /// The sink refused a record.
    refused: bool,
    /// The most bytes of lines that a trace of this size expands to.
    most_line_bytes: u64,
}

impl<S: Sink> Reading<'_, S> {
    fn io_error(&self, source: io::Error) -> ReadError {
        ReadError::io(self.path, source)
    }

    fn first_line(&self, error: FirstLine) -> ReadError {
        ReadError::first_line(self.path, error)
    }

    fn into_through(self) -> ReadSummary {
        ReadSummary { skipped: self.feed.skipped, ..self.through }
    }

    fn read_plain(
        &mut self,
        file: File,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<(), ReadError> {
        let bytes_total = file.metadata().map_err(|source| self.io_error(source))?.len();
        self.read_counted(Counted { source: file, read: 0 }, bytes_total, progress)
    }

    fn read_counted<R: Read>(
        &mut self,
        mut source: Counted<R>,
        bytes_total: u64,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<(), ReadError> {
        self.read(&mut source, |source, events| progress(Progress { bytes_read: source.read, bytes_total, events }))
    }

    /// Reads to the end.
    fn read<R: Read>(
        &mut self,
        source: &mut R,
        mut progress: impl FnMut(&R, u64) -> ControlFlow<()>,
    ) -> Result<(), ReadError> {
        let mut buffer = vec![0; BUFFER];
        let mut filled = 0;
        // In a line that is too long, up to its newline.
        let mut discarding = false;
        let mut next_report = BUFFER as u64;
        loop {
            let read = match source.read(&mut buffer[filled..]) {
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // A compressed file that was cut or damaged: what precedes still counts.
                Err(error) if self.feed.has_header && error.kind() != io::ErrorKind::IsADirectory => {
                    self.through.truncated = true;
                    break;
                }
                Err(source) => return Err(self.io_error(source)),
            };
            if read == 0 {
                break;
            }
            filled += read;
            let mut consumed = 0;
            if discarding {
                consumed = memchr::memchr(b'\n', &buffer[..filled]).map_or(filled, |length| length + 1);
                discarding = consumed == filled && buffer[filled - 1] != b'\n';
                self.feed.pass_line(consumed);
            }
            let fed = self.feed.feed(&buffer[consumed..filled], usize::MAX, self.sink);
            let fed = fed.map_err(|error| self.first_line(error))?;
            consumed += fed.consumed;
            self.refused = fed.refused;
            buffer.copy_within(consumed..filled, 0);
            filled -= consumed;
            if filled == buffer.len() {
                if buffer.len() < LONGEST_LINE {
                    buffer.resize(buffer.len() * 2, 0);
                } else {
                    if !self.feed.has_header {
                        return Err(self.first_line(FirstLine::NotATrace));
                    }
                    self.feed.overlong();
                    self.feed.pass_line(filled);
                    filled = 0;
                    discarding = true;
                }
            }
            if self.refused {
                break;
            }
            if self.feed.line_bytes > self.most_line_bytes {
                return Err(ReadError::Expands { path: self.path.to_owned() });
            }
            if self.feed.offset >= next_report {
                next_report = self.feed.offset + BUFFER as u64;
                if progress(source, self.sink.model().events()).is_break() {
                    self.through.cancelled = true;
                    return Ok(());
                }
            }
        }
        self.through.cancelled = progress(source, self.sink.model().events()).is_break();
        if self.through.cancelled || self.refused || discarding { Ok(()) } else { self.finish(&buffer[..filled]) }
    }

    /// Replays the bytes after the last newline.
    fn finish(&mut self, rest: &[u8]) -> Result<(), ReadError> {
        let path = || self.path.to_owned();
        if !self.feed.has_header && self.feed.offset == 0 && rest.starts_with(b"{\"memlab\":") && !rest.ends_with(b"}")
        {
            return Err(ReadError::NoFirstLine { path: path() });
        }
        let truncated = self.feed.finish(rest, self.sink);
        self.through.truncated |= truncated.map_err(|error| ReadError::first_line(self.path, error))?;
        match (self.feed.has_header, self.through.truncated) {
            (true, _) => Ok(()),
            (false, true) => Err(ReadError::NotATrace { path: path() }),
            (false, false) => Err(ReadError::Empty { path: path() }),
        }
    }
}

/// Counts bytes read.
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
