//! The state of a trace at any moment.
//!
//! A seek forward replays the events in between. A seek backward begins at the nearest checkpoint: a copy of the state, made on
//! the way. The larger the copies, the fewer are kept.

use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::checkpoints::Checkpoints;
use super::error::ReadError;
use super::file::open_continuation;
use super::limits::{BUFFER, LONGEST_LINE};
use super::lines::{ReadPosition, Skipped};
use super::progress::{Extent, Progress};
use super::source::Source;
use crate::model::Model;
use crate::record::Record;
use crate::replay::Replay;
use crate::seek_target::SeekTarget;
use crate::sink::Sink;

/// The result of [`SeekableReplay::seek`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekOutcome {
    /// The state is that of the moment.
    Found,
    /// The trace was cut down to its maximum size and no longer has that moment: the state is the earliest it has.
    NotKept,
    /// The progress callback cancelled: the state is somewhere on the way.
    Cancelled,
}

/// A trace whose state at any moment can be computed.
pub struct SeekableReplay {
    path: PathBuf,
    identity: (u64, u64),
    source: Source,
    position: ReadPosition,
    replay: Replay,
    /// Read but not yet replayed.
    buffer: Vec<u8>,
    filled: usize,
    /// In a line that is too long, up to its newline.
    discarding: bool,
    /// The bytes after the last newline were replayed too.
    finished: bool,
    /// The compressed file ends too early.
    truncated: bool,
    checkpoints: Checkpoints,
}

impl SeekableReplay {
    /// Opens a trace, plain or compressed, at its begin. The state keeps its latest `events` events.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened.
    pub fn open(path: &Path, events: usize) -> Result<Self, ReadError> {
        let (source, identity) = Source::open(path).map_err(|source| ReadError::io(path, source))?;
        Ok(Self {
            path: path.to_owned(),
            identity,
            source,
            position: ReadPosition::default(),
            replay: Replay::with_history(events),
            buffer: vec![0; BUFFER],
            filled: 0,
            discarding: false,
            finished: false,
            truncated: false,
            checkpoints: Checkpoints::default(),
        })
    }

    /// Bounds the bytes that copies of the state take together; 256 MiB by default.
    pub fn set_checkpoint_budget(&mut self, bytes: usize) {
        self.checkpoints.set_budget(bytes);
    }

    /// The state at the moment of the last seek.
    pub fn model(&self) -> &Model {
        &self.replay.model
    }

    /// That state with the events before it; after a seek backward only those since a checkpoint.
    pub fn replay(&self) -> &Replay {
        &self.replay
    }

    /// Garbled lines skipped on the way from the begin.
    pub fn skipped(&self) -> &Skipped {
        &self.position.feed.skipped
    }

    /// Copies the names of layers and threads from a later state.
    pub fn adopt_names(&mut self, later: &Model) {
        self.replay.model.adopt_names(later);
    }

    /// Whether the trace ends in the middle of a compressed frame, as far as it was read.
    pub fn truncated(&self) -> bool {
        self.truncated
    }

    /// The state.
    pub fn into_replay(self) -> Replay {
        self.replay
    }

    /// Seeks to a moment, reading no further than `extent`. `progress` is called about every MiB; if it breaks, the state stays
    /// where it is.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, is not a trace, or was written by a newer memlab.
    pub fn seek(
        &mut self,
        at: SeekTarget,
        extent: Extent,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<SeekOutcome, ReadError> {
        self.reopen_if_replaced()?;
        self.begin_close_to(at)?;
        let mut next_report = self.position.feed.offset;
        while !self.finished && self.advance(at, extent)? {
            if !self.discarding {
                self.checkpoints.add_if_due(&self.position, &self.replay.model);
            }
            if self.position.feed.offset >= next_report {
                next_report = self.position.feed.offset + BUFFER as u64;
                let (bytes_read, events) = (self.position.feed.offset, self.replay.model.events());
                if progress(Progress { bytes_read, bytes_total: self.source.bytes_total(), events }).is_break() {
                    return Ok(SeekOutcome::Cancelled);
                }
            }
        }
        if self.replay.model.header().is_none() {
            return Err(ReadError::Empty { path: self.path.clone() });
        }
        Ok(if at.is_ahead_of(&self.replay.model) { SeekOutcome::Found } else { SeekOutcome::NotKept })
    }

    /// Replays the buffer and reads more; false at the moment or at the end.
    fn advance(&mut self, at: SeekTarget, extent: Extent) -> Result<bool, ReadError> {
        if self.discarding {
            let end = memchr::memchr(b'\n', &self.buffer[..self.filled]);
            self.discarding = end.is_none();
            self.consume(end.map_or(self.filled, |length| length + 1), true);
        }
        let mut sink = Stopping { replay: &mut self.replay, at, refused: false };
        let fed = self.position.feed.feed(&self.buffer[..self.filled], usize::MAX, &mut sink);
        let fed = fed.map_err(|error| ReadError::first_line(&self.path, error))?;
        self.consume(fed.consumed, false);
        if fed.refused {
            return Ok(false);
        }
        if let Some(offset) = self.position.feed.skips_to() {
            self.position.feed.pass((offset - self.position.feed.offset) as usize);
            self.filled = 0;
        }
        if self.filled == self.buffer.len() {
            self.make_room();
        }
        if self.read(extent)? || self.enter_continuation(extent) {
            return Ok(true);
        }
        if extent == Extent::WHOLE && !self.discarding {
            let mut sink = Stopping { replay: &mut self.replay, at, refused: false };
            let finished = self.position.feed.finish(&self.buffer[..self.filled], &mut sink);
            finished.map_err(|error| ReadError::first_line(&self.path, error))?;
            self.finished = !sink.refused;
        }
        Ok(false)
    }

    /// Reads more of the file; whether there was more.
    fn read(&mut self, extent: Extent) -> Result<bool, ReadError> {
        let position = self.position.feed.offset + self.filled as u64;
        let room = (self.buffer.len() - self.filled) as u64;
        let is_bounded = extent.in_continuation == self.position.in_continuation;
        let wanted = if is_bounded { room.min(extent.offset.saturating_sub(position)) } else { room };
        let read = match self.source.read_at(position, &mut self.buffer[self.filled..][..wanted as usize]) {
            Ok(read) => read,
            // A compressed trace that was cut or damaged: what precedes still counts.
            Err(_) if self.replay.model.header().is_some() => {
                self.truncated = true;
                0
            }
            Err(source) => return Err(ReadError::io(&self.path, source)),
        };
        self.filled += read;
        Ok(read > 0)
    }

    /// Removes `bytes` from the front of the buffer; `unseen`: they were not fed.
    fn consume(&mut self, bytes: usize, unseen: bool) {
        self.buffer.copy_within(bytes..self.filled, 0);
        self.filled -= bytes;
        if unseen {
            self.position.feed.pass(bytes);
        }
    }

    /// The buffer is full and holds no complete line.
    fn make_room(&mut self) {
        if self.buffer.len() < LONGEST_LINE {
            self.buffer.resize(self.buffer.len() * 2, 0);
        } else {
            self.position.feed.overlong();
            self.consume(self.filled, true);
            self.discarding = true;
        }
    }

    fn enter_continuation(&mut self, extent: Extent) -> bool {
        if self.position.in_continuation || !extent.in_continuation {
            return false;
        }
        let Some(file) = open_continuation(&self.path, &self.replay.model) else { return false };
        self.source = Source::Plain(file);
        self.position.in_continuation = true;
        self.filled = 0;
        self.position.feed.start_continuation();
        true
    }

    /// The writer cut the trace down: the position in the old file and its checkpoints are not valid in the new one.
    fn reopen_if_replaced(&mut self) -> Result<(), ReadError> {
        let found = std::fs::metadata(&self.path).map(|found| (found.dev(), found.ino()));
        if found.is_ok_and(|found| found != self.identity) {
            let mut checkpoints = std::mem::take(&mut self.checkpoints);
            checkpoints.clear();
            *self = Self { checkpoints, ..Self::open(&self.path, self.replay.history_length())? };
        }
        Ok(())
    }

    /// Goes to the best checkpoint before the moment, unless the current state is better; to the begin if there is none.
    fn begin_close_to(&mut self, at: SeekTarget) -> Result<(), ReadError> {
        let is_usable = at.is_ahead_of(&self.replay.model);
        let mut before = self.checkpoints.before(at);
        let nearest = before.next();
        // If past events are kept, one checkpoint further back, so that there are some.
        let best = if self.replay.history_length() > 0 { before.next().or(nearest) } else { nearest };
        let best = best.filter(|best| !is_usable || best.model.events() > self.replay.model.events());
        if is_usable && best.is_none() {
            return Ok(());
        }
        let was_in_continuation = self.position.in_continuation;
        match best {
            Some(checkpoint) => {
                self.replay = Replay::from_model(checkpoint.model.clone(), self.replay.history_length());
                self.position = checkpoint.position.clone();
            }
            None => {
                self.replay.restart();
                self.position = ReadPosition::default();
            }
        }
        (self.filled, self.discarding, self.finished) = (0, false, false);
        match (was_in_continuation, self.position.in_continuation) {
            (true, false) => {
                (self.source, self.identity) =
                    Source::open(&self.path).map_err(|source| ReadError::io(&self.path, source))?;
            }
            (false, true) => {
                if let Some(file) = open_continuation(&self.path, &self.replay.model) {
                    self.source = Source::Plain(file);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Adds a state that a follower of the same trace has reached as a checkpoint, if one is due there.
    pub fn add_checkpoint(&mut self, position: &ReadPosition, model: &Model) {
        self.checkpoints.add_if_due(position, model);
    }
}

/// Refuses events after the moment.
struct Stopping<'r> {
    replay: &'r mut Replay,
    at: SeekTarget,
    refused: bool,
}

impl Sink for Stopping<'_> {
    #[inline]
    fn take(&mut self, record: Record<'_>) -> ControlFlow<()> {
        if self.at.is_before(&record, &self.replay.model) {
            self.refused = true;
            return ControlFlow::Break(());
        }
        self.replay.take(record)
    }

    fn model(&self) -> &Model {
        &self.replay.model
    }

    fn restart(&mut self) {
        self.replay.restart();
    }
}
