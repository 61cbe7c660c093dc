//! Following a trace that is still being written.

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

/// The least read at once, where little is new: many traces that are followed keep a buffer each.
const MIN_BUFFER_BYTES: usize = 64 << 10;

/// How long to wait for a reserved line while later ones are there. A thread that takes longer to copy a line was killed or
/// stopped in the middle of it.
const HOLE_TIMEOUT: Duration = Duration::from_secs(2);

/// The result of [`Follower::poll`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Polled {
    /// Events replayed.
    pub events: u64,
    /// Whether there is more to read immediately.
    pub more: bool,
    /// Whether the file was replaced or cut, and the sink restarted.
    pub restarted: bool,
}

/// Reads a trace while it grows.
pub struct Follower {
    path: PathBuf,
    file: File,
    identity: (u64, u64),
    position: ReadPosition,
    buffer: Vec<u8>,
    /// Bytes to read at once: the fewer, the less was new lately.
    buffer_size: usize,
    writer_is_dead: bool,
    skips_holes: bool,
    /// Since when, and at which offset, a reserved line is missing.
    stuck: Option<(Instant, u64)>,
}

impl Follower {
    /// The most bytes that one poll reads, so that the caller stays responsive: some 60 ms.
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

    /// Replays what was written since the last poll, up to [`POLL_BYTES`](Self::POLL_BYTES) of it.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, is not a trace, or is one of a newer memlab.
    pub fn poll(&mut self, sink: &mut impl Sink) -> Result<Polled, ReadError> {
        self.poll_at(Instant::now(), sink)
    }

    /// Replays the beginning, about a MiB of it, so that something can be shown at once.
    ///
    /// # Errors
    ///
    /// As [`Follower::poll`].
    pub fn begin(&mut self, sink: &mut impl Sink) -> Result<Polled, ReadError> {
        let events = sink.model().events();
        let more = self.read_some(Instant::now(), sink)?;
        Ok(Polled { events: sink.model().events() - events, more, restarted: false })
    }

    /// As [`Follower::poll`], with the clock given.
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

    /// The writer is dead: lines that it reserved but did not write are skipped from now on.
    pub fn set_writer_dead(&mut self) {
        self.writer_is_dead = true;
    }

    /// Lines that are missing now are skipped, whether the writer lives or not.
    pub fn skip_holes(&mut self) {
        self.skips_holes = true;
    }

    /// Garbled lines passed over so far.
    pub fn skipped(&self) -> &Skipped {
        &self.position.feed.skipped
    }

    /// The position, for [`SeekableReplay::add_checkpoint`](super::SeekableReplay::add_checkpoint).
    pub fn position(&self) -> ReadPosition {
        self.position.clone()
    }

    /// How much of the trace was replayed.
    pub fn extent(&self) -> Extent {
        Extent { in_continuation: self.position.in_continuation, offset: self.position.feed.offset }
    }

    /// The file followed.
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

    /// If there is much to read, reads it up to `end`, decoded ahead by another thread. What takes more thought is left where it is.
    /// Returns whether there is more, and it has read nearly all that it may.
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
            // But for a line that continues there, which the next poll begins with.
            None => Ok(length > end && self.position.feed.offset + BUFFER_BYTES as u64 > end),
        }
    }

    /// Reads one buffer; whether there may be more to read immediately.
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

    /// Halves the buffer if most of it was not needed.
    fn shrink_buffer(&mut self, consumed: usize) {
        if consumed < self.buffer_size / 4 {
            self.buffer_size = (self.buffer_size / 2).max(MIN_BUFFER_BYTES);
            self.buffer.truncate(self.buffer_size);
            self.buffer.shrink_to_fit();
        }
    }

    /// The writer is dead and its file read to the end: continues in the continuation file, if there is one.
    fn enter_continuation(&mut self, sink: &impl Sink) -> Result<bool, ReadError> {
        let Some(continuation) = open_continuation(&self.path, sink.model()) else { return Ok(false) };
        self.file = continuation;
        self.position.in_continuation = true;
        self.position.feed.start_continuation();
        Ok(true)
    }

    /// Whether a reserved line has been missing for too long, and a later one is there.
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
