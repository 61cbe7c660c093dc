//! Reader of a whole trace.

use std::io;
use std::ops::ControlFlow;
use std::path::Path;

use super::chunks::{Chunk, Chunks};
use super::error::ReadError;
use super::file::open_continuation;
use super::limits::{BUFFER_BYTES, MAX_EXPANSION, READ_AHEAD_BYTES};
use super::lines::Feed;
use super::progress::{Loaded, Progress, ReadSummary};
use super::source::Source;
use crate::model::Model;
use crate::sink::Sink;

/// Size below which any expansion is accepted.
const SMALL_TRACE_BYTES: u64 = 64 << 20;

/// Reads a trace, plain or compressed with zstd (detected by content).
///
/// Also reads its continuation file (`FILE.next`), if the writer died while cutting the trace down.
///
/// `progress` is called about every MiB, and at the end; if it breaks, the result covers the part read so far. Reserved but
/// unwritten lines are skipped. Garbled lines are skipped and counted.
///
/// # Errors
///
/// If the file cannot be read, is empty, is not a trace, was written by a newer memlab, or expands without bound.
pub fn load_whole(path: &Path, progress: &mut dyn FnMut(Progress) -> ControlFlow<()>) -> Result<Loaded, ReadError> {
    let mut model = Model::new();
    let through = read_whole(path, &mut model, progress)?;
    Ok(Loaded::new(model, through))
}

/// Reads a trace as [`load_whole`] does, and passes each record to `sink`. Reading ends where the sink refuses one.
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
        reading.read(Source::plain(continuation, 0), progress)?;
    }
    Ok(reading.into_through())
}

/// Reads a trace as [`load_whole`] does, without the continuation file.
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
    let (source, _) = Source::open(path).map_err(|source| ReadError::io(path, source))?;
    let is_bounded = source.is_compressed() && source.file().metadata().is_ok_and(|metadata| metadata.is_file());
    let most_line_bytes = source.file_bytes().saturating_mul(MAX_EXPANSION).max(SMALL_TRACE_BYTES);
    let mut reading = Reading {
        path,
        sink,
        feed: Feed::default(),
        through: ReadSummary::default(),
        refused: false,
        most_line_bytes: if is_bounded { most_line_bytes } else { u64::MAX },
    };
    reading.read(source, progress)?;
    Ok(reading)
}

/// State of reading a trace.
struct Reading<'p, S> {
    path: &'p Path,
    sink: &'p mut S,
    feed: Feed,
    through: ReadSummary,
    /// True if the sink refused a record.
    refused: bool,
    /// Maximum bytes of lines that a trace of this size may expand to.
    most_line_bytes: u64,
}

impl<S: Sink> Reading<'_, S> {
    fn into_through(self) -> ReadSummary {
        ReadSummary { skipped: self.feed.skipped, ..self.through }
    }

    /// Reads to the end.
    fn read(&mut self, source: Source, progress: &mut dyn FnMut(Progress) -> ControlFlow<()>) -> Result<(), ReadError> {
        let bytes_total = source.file_bytes();
        // A few bytes of a compressed trace can expand to many.
        let ahead = source.is_compressed() || bytes_total >= READ_AHEAD_BYTES;
        let mut bytes_read = 0;
        let mut next_report = BUFFER_BYTES as u64;
        let mut chunks = Chunks::new(source, Source::file_bytes_read);
        let stopped = chunks.each(ahead, |chunk| {
            bytes_read = chunk.file_bytes_read;
            if let Err(error) = self.take(chunk) {
                return ControlFlow::Break(Err(error));
            }
            if self.feed.offset >= next_report {
                next_report = self.feed.offset + BUFFER_BYTES as u64;
                let so_far = Progress { bytes_read, bytes_total, events: self.sink.model().events() };
                self.through.cancelled = progress(so_far).is_break();
            }
            if self.refused || self.through.cancelled { ControlFlow::Break(Ok(())) } else { ControlFlow::Continue(()) }
        });
        if let Some(Err(error)) = stopped {
            return Err(error);
        }
        if self.through.cancelled {
            return Ok(());
        }
        let at_end = Progress { bytes_read, bytes_total, events: self.sink.model().events() };
        self.through.cancelled = progress(at_end).is_break();
        if self.through.cancelled || self.refused || self.feed.is_in_long_line() {
            return Ok(());
        }
        self.finish(chunks.pending())
    }

    /// Replays the lines of a chunk.
    fn take(&mut self, chunk: &mut Chunk) -> Result<(), ReadError> {
        let fed = self.feed.feed_chunk(chunk, usize::MAX, self.sink);
        let fed = fed.map_err(|error| ReadError::first_line(self.path, error))?;
        chunk.consume(fed.consumed);
        self.refused = fed.refused;
        match chunk.take_failure() {
            // A truncated or damaged compressed file: the part before the error still counts.
            Some(error) if self.feed.has_header && error.kind() != io::ErrorKind::IsADirectory => {
                self.through.truncated = true;
            }
            Some(error) => return Err(ReadError::io(self.path, error)),
            None => {}
        }
        if self.feed.line_bytes > self.most_line_bytes {
            return Err(ReadError::Expands { path: self.path.to_owned() });
        }
        Ok(())
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
