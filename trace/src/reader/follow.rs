//! Follower of a trace that is still being written.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::chunks::Chunks;
use super::error::ReadError;
use super::file::{is_zstd, open_continuation, open_file};
use super::limits::{BUFFER_BYTES, MAX_LINE_BYTES, READ_AHEAD_BYTES};
use super::lines::{ReadPosition, Skipped};
use super::progress::Extent;
use super::source::Source;
use crate::sink::Sink;

/// Minimum buffer size, for traces with few new bytes: each followed trace keeps a buffer.
const MIN_BUFFER_BYTES: usize = 64 << 10;

/// Time to wait for a reserved line when later lines exist.
///
/// A thread that takes longer to copy a line was killed or stopped in the middle of it.
const HOLE_TIMEOUT: Duration = Duration::from_secs(2);

/// The result of [`Follower::poll`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Polled {
    /// Events replayed.
    pub events: u64,
    /// True if more can be read immediately.
    pub more: bool,
    /// True if the file was replaced or truncated, and the sink restarted.
    pub restarted: bool,
}

/// Reads a trace while it grows.
pub struct Follower {
    path: PathBuf,
    file: File,
    identity: (u64, u64),
    position: ReadPosition,
    buffer: Vec<u8>,
    /// Bytes to read at once; adapts to the amount of new bytes.
    buffer_size: usize,
    writer_is_dead: bool,
    skips_holes: bool,
    /// Time and offset at which a reserved line was first found missing.
    stuck: Option<(Instant, u64)>,
}

impl Follower {
    /// Maximum number of bytes per poll, some 60 ms, so that the caller stays responsive.
    pub const POLL_BYTES: u64 = 32 << 20;

    /// Opens a trace to follow. It may still be empty.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened, or is compressed.
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        let (file, identity) = open(path)?;
        let mut magic = [0; 4];
        if read_at(&file, 0, &mut magic).is_ok_and(|length| length == 4) && is_zstd(&magic) {
            return Err(ReadError::Compressed { path: path.to_owned() });
        }
        Ok(Self {
            path: path.to_owned(),
            file,
            identity,
            position: ReadPosition::default(),
            buffer: Vec::new(),
            buffer_size: BUFFER_BYTES,
            writer_is_dead: false,
            skips_holes: false,
            stuck: None,
        })
    }

    /// Replays the bytes written since the last poll, up to [`POLL_BYTES`](Self::POLL_BYTES).
    ///
    /// # Errors
    ///
    /// If the file cannot be read, is not a trace, or is a trace of a newer memlab.
    pub fn poll(&mut self, sink: &mut impl Sink) -> Result<Polled, ReadError> {
        self.poll_at(Instant::now(), sink)
    }

    /// Replays about the first MiB, so that the caller can show something at once.
    ///
    /// # Errors
    ///
    /// As [`Follower::poll`].
    pub fn begin(&mut self, sink: &mut impl Sink) -> Result<Polled, ReadError> {
        let events = sink.model().events();
        let more = self.read_some(Instant::now(), sink)?;
        Ok(Polled { events: sink.model().events() - events, more, restarted: false })
    }

    /// Polls as [`Follower::poll`] does, with the given clock.
    ///
    /// # Errors
    ///
    /// As [`Follower::poll`].
    pub fn poll_at(&mut self, now: Instant, sink: &mut impl Sink) -> Result<Polled, ReadError> {
        let restarted = self.restart_if_replaced(sink)?;
        let events = sink.model().events();
        let end = self.position.feed.offset + Self::POLL_BYTES;
        let mut more = true;
        let mut is_enough = self.catch_up(end, sink)?;
        while more && !is_enough {
            more = self.read_some(now, sink)?;
            is_enough = self.position.feed.offset >= end;
        }
        Ok(Polled { events: sink.model().events() - events, more, restarted })
    }

    /// Records that the writer is dead: reserved but unwritten lines are skipped from now on.
    pub fn set_writer_dead(&mut self) {
        self.writer_is_dead = true;
    }

    /// Skips lines that are missing now, even if the writer lives.
    pub fn skip_holes(&mut self) {
        self.skips_holes = true;
    }

    /// Returns the garbled lines skipped so far.
    pub fn skipped(&self) -> &Skipped {
        &self.position.feed.skipped
    }

    /// Returns the position, for [`SeekableReplay::add_checkpoint`](super::SeekableReplay::add_checkpoint).
    pub fn position(&self) -> ReadPosition {
        self.position.clone()
    }

    /// Returns the replayed extent of the trace.
    pub fn extent(&self) -> Extent {
        Extent { in_continuation: self.position.in_continuation, offset: self.position.feed.offset }
    }

    /// Returns the path of the followed file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn error(&self, source: io::Error) -> ReadError {
        ReadError::io(&self.path, source)
    }

    fn restart_if_replaced(&mut self, sink: &mut impl Sink) -> Result<bool, ReadError> {
        // A deleted file stays readable while it is open.
        let replaced = std::fs::metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) != self.identity);
        let length = self.file.metadata().map_err(|source| self.error(source))?.len();
        if !replaced && (length >= self.position.feed.offset || self.position.in_continuation) {
            return Ok(false);
        }
        (self.file, self.identity) = open(&self.path)?;
        self.position = ReadPosition::default();
        self.stuck = None;
        sink.restart();
        Ok(true)
    }

    /// Reads up to `end` with another thread decoding ahead, if enough is left to read.
    ///
    /// Stops at gaps and refused records. Returns true if it read nearly up to `end` and more follows.
    fn catch_up(&mut self, end: u64, sink: &mut impl Sink) -> Result<bool, ReadError> {
        let length = self.file.metadata().map_err(|source| self.error(source))?.len();
        let start = self.position.feed.offset;
        if length.min(end).saturating_sub(start) < READ_AHEAD_BYTES {
            return Ok(false);
        }
        let mut source = Source::plain(self.file.try_clone().map_err(|source| self.error(source))?, start);
        source.end_at(end);
        let holes = if self.writer_is_dead || self.skips_holes { usize::MAX } else { 0 };
        let feed = &mut self.position.feed;
        let stopped = Chunks::new(source, Source::file_bytes_read).each(true, |chunk| {
            match feed.feed_chunk(chunk, holes, sink) {
                Err(error) => ControlFlow::Break(Some(error)),
                Ok(fed) if fed.at_hole || fed.refused || feed.skips_to().is_some() => ControlFlow::Break(None),
                Ok(_) => ControlFlow::Continue(()),
            }
        });
        match stopped.flatten() {
            Some(error) => Err(ReadError::first_line(&self.path, error)),
            // A line that continues beyond `end` is left for the next poll.
            None => Ok(length > end && self.position.feed.offset + BUFFER_BYTES as u64 > end),
        }
    }

    /// Reads one buffer. Returns true if more may be read immediately.
    fn read_some(&mut self, now: Instant, sink: &mut impl Sink) -> Result<bool, ReadError> {
        let offset = self.position.feed.offset;
        self.buffer.resize(self.buffer_size, 0);
        let length = read_at(&self.file, offset, &mut self.buffer).map_err(|source| self.error(source))?;
        let never_written = self.writer_is_dead || self.skips_holes;
        let holes = if never_written { usize::MAX } else { usize::from(self.hole_timed_out(now, length)) };
        let bytes = &self.buffer[..length];
        let fed =
            self.position.feed.feed(bytes, holes, sink).map_err(|error| ReadError::first_line(&self.path, error))?;
        let is_full = length == self.buffer.len();
        if fed.at_hole {
            let offset = self.position.feed.offset;
            if self.stuck.is_none_or(|(_, at)| at != offset) {
                self.stuck = Some((now, offset));
            }
            self.shrink_buffer(fed.consumed);
            return Ok(false);
        }
        self.stuck = None;
        if fed.refused {
            return Ok(false);
        }
        if let Some(offset) = self.position.feed.skips_to()
            && self.file.metadata().map_err(|source| self.error(source))?.len() >= offset
        {
            self.position.feed.pass((offset - self.position.feed.offset) as usize);
            return Ok(true);
        }
        if self.writer_is_dead && !is_full && !self.position.in_continuation {
            return self.enter_continuation(sink);
        }
        if fed.consumed == 0 && is_full {
            if self.buffer.len() >= MAX_LINE_BYTES {
                self.position.feed.overlong();
                self.position.feed.pass(length);
            } else {
                self.buffer_size *= 2;
            }
        } else if is_full {
            self.buffer_size = (self.buffer_size * 2).min(BUFFER_BYTES);
            self.buffer.truncate(BUFFER_BYTES);
        } else {
            self.shrink_buffer(fed.consumed);
        }
        Ok(is_full)
    }

    /// Halves the buffer if most of it was unused.
    fn shrink_buffer(&mut self, consumed: usize) {
        if consumed < self.buffer_size / 4 {
            self.buffer_size = (self.buffer_size / 2).max(MIN_BUFFER_BYTES);
            self.buffer.truncate(self.buffer_size);
            self.buffer.shrink_to_fit();
        }
    }

    /// Continues in the continuation file, if any, after the writer died and its file was read to the end.
    fn enter_continuation(&mut self, sink: &impl Sink) -> Result<bool, ReadError> {
        let Some(continuation) = open_continuation(&self.path, sink.model()) else { return Ok(false) };
        self.file = continuation;
        self.position.in_continuation = true;
        self.position.feed.start_continuation();
        Ok(true)
    }

    /// Returns true if a reserved line has been missing for too long and a later one exists.
    fn hole_timed_out(&self, now: Instant, length: usize) -> bool {
        let waited = self.stuck.is_some_and(|(since, at)| {
            at == self.position.feed.offset && now.saturating_duration_since(since) >= HOLE_TIMEOUT
        });
        let buffer = &self.buffer[..length];
        waited && buffer.first() == Some(&0) && buffer.iter().any(|byte| *byte != 0)
    }
}

fn open(path: &Path) -> Result<(File, (u64, u64)), ReadError> {
    let error = |source| ReadError::io(path, source);
    let file = open_file(path).map_err(error)?;
    let metadata = file.metadata().map_err(error)?;
    Ok((file, (metadata.dev(), metadata.ino())))
}

/// Reads from an offset until the buffer is full or the file ends.
fn read_at(mut file: &File, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
    file.seek(SeekFrom::Start(offset))?;
    let mut length = 0;
    while length < buffer.len() {
        match file.read(&mut buffer[length..]) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}
