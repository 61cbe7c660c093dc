//! The state of a trace at any moment.
//!
//! A seek forward replays the events in between. A seek backward starts at the nearest checkpoint, a copy of the state made
//! on the way. Larger copies mean fewer checkpoints.

use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::checkpoints::{Checkpoint, Checkpoints};
use super::chunks::Chunks;
use super::error::ReadError;
use super::file::open_continuation;
use super::limits::{BUFFER_BYTES, READ_AHEAD_BYTES};
use super::lines::{ReadPosition, Skipped};
use super::progress::{Extent, Progress};
use super::source::Source;
use crate::model::Model;
use crate::replay::Replay;
use crate::seek_target::SeekTarget;
use crate::sink::Sink;
use memlab_format::record::Record;

/// The result of [`SeekableReplay::seek`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekOutcome {
    /// The state is that of the requested moment.
    Found,
    /// The trace was cut down to its maximum size and lost that moment: the state is the earliest available.
    NotKept,
    /// The progress callback cancelled the seek before it reached the moment.
    Cancelled,
}

/// A trace that can compute its state at any moment.
pub struct SeekableReplay {
    path: PathBuf,
    identity: (u64, u64),
    chunks: Chunks<Source>,
    position: ReadPosition,
    replay: Replay,
    /// True if the bytes after the last newline were replayed too.
    finished: bool,
    /// True if the compressed file ends too early.
    truncated: bool,
    checkpoints: Checkpoints,
}

impl SeekableReplay {
    /// Opens a trace, plain or compressed, at its start. The replay keeps its latest `events` events.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened.
    pub fn open(path: &Path, events: usize) -> Result<Self, ReadError> {
        let (source, identity) = Source::open(path).map_err(|source| ReadError::io(path, source))?;
        Ok(Self {
            path: path.to_owned(),
            identity,
            chunks: Chunks::new(source, Source::file_bytes_read),
            position: ReadPosition::default(),
            replay: Replay::with_history(events),
            finished: false,
            truncated: false,
            checkpoints: Checkpoints::default(),
        })
    }

    /// Sets the limit for the memory of all checkpoints together; 256 MiB by default.
    pub fn set_checkpoint_budget(&mut self, bytes: usize) {
        self.checkpoints.set_budget(bytes);
    }

    /// Sets the minimum number of events between two checkpoints, a million by default.
    ///
    /// The spacing grows if the checkpoints would exceed their memory limit.
    pub fn set_checkpoint_spacing(&mut self, events: u64) {
        self.checkpoints.set_spacing(events);
    }

    /// Returns the state at the moment of the last seek.
    pub fn model(&self) -> &Model {
        &self.replay.model
    }

    /// Returns that state with its latest events.
    ///
    /// If checkpoints are far apart, it may have only the events since the last one.
    pub fn replay(&self) -> &Replay {
        &self.replay
    }

    /// Returns the garbled lines skipped from the start.
    pub fn skipped(&self) -> &Skipped {
        &self.position.feed.skipped
    }

    /// Copies the names of layers and threads from a later state.
    pub fn adopt_names(&mut self, later: &Model) {
        self.replay.model.adopt_names(later);
    }

    /// Returns true if the part read so far ends in the middle of a compressed frame.
    pub fn truncated(&self) -> bool {
        self.truncated
    }

    /// Returns the replay.
    pub fn into_replay(self) -> Replay {
        self.replay
    }

    /// Seeks to a moment, without reading beyond `extent`.
    ///
    /// `progress` is called about every MiB; if it breaks, the state stays where it is.
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
        let mut outcome = self.go_to(at, extent, progress)?;
        if outcome == SeekOutcome::Found
            && self.replay.lacks_events()
            && let Some(earlier) = self.checkpoints.before_the_nearest(at)
        {
            // The checkpoint is shortly before the moment. A start at the earlier one provides the events between the two.
            self.begin_at(earlier)?;
            outcome = self.go_to(at, extent, progress)?;
        }
        Ok(outcome)
    }

    /// Replays from the current position to a moment.
    fn go_to(
        &mut self,
        at: SeekTarget,
        extent: Extent,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<SeekOutcome, ReadError> {
        let events_from = self.replay.events_from(at);
        let mut next_report = self.position.feed.offset;
        while !self.finished {
            match self.advance(at, events_from, extent, &mut next_report, progress)? {
                SeekProgress::Further => {}
                SeekProgress::ToTheMoment => break,
                SeekProgress::Cancelled => return Ok(SeekOutcome::Cancelled),
            }
        }
        if self.replay.model.header().is_none() {
            return Err(ReadError::Empty { path: self.path.clone() });
        }
        Ok(if at.is_ahead_of(&self.replay.model) { SeekOutcome::Found } else { SeekOutcome::NotKept })
    }

    /// Replays up to the moment, a range that the trace skips, or the end of a file.
    fn advance(
        &mut self,
        at: SeekTarget,
        events_from: u64,
        extent: Extent,
        next_report: &mut u64,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<SeekProgress, ReadError> {
        let Self { path, chunks, position, replay, checkpoints, truncated, .. } = self;
        let is_bounded = extent.in_continuation == position.in_continuation;
        chunks.source.end_at(if is_bounded { extent.offset } else { u64::MAX });
        let bytes_total = if chunks.source.is_compressed() { 0 } else { chunks.source.file_bytes() };
        let ahead =
            chunks.source.is_compressed() || bytes_total.saturating_sub(position.feed.offset) >= READ_AHEAD_BYTES;
        let mut sink = StopAtMoment { replay, at, events_from, refused: false };
        let stopped = chunks.each(ahead, |chunk| {
            let fed = match position.feed.feed_chunk(chunk, usize::MAX, &mut sink) {
                Ok(fed) => fed,
                Err(error) => return ControlFlow::Break(Err(ReadError::first_line(path, error))),
            };
            chunk.consume(fed.consumed);
            if fed.refused {
                return ControlFlow::Break(Ok(SeekProgress::ToTheMoment));
            }
            match chunk.take_failure() {
                // A truncated or damaged compressed trace: the part before the error still counts.
                Some(_) if sink.model().header().is_some() => *truncated = true,
                Some(error) => return ControlFlow::Break(Err(ReadError::io(path, error))),
                None => {}
            }
            if position.feed.offset >= *next_report {
                *next_report = position.feed.offset + BUFFER_BYTES as u64;
                checkpoints.add_if_due(position, sink.model());
                let (bytes_read, events) = (position.feed.offset, sink.model().events());
                if progress(Progress { bytes_read, bytes_total, events }).is_break() {
                    return ControlFlow::Break(Ok(SeekProgress::Cancelled));
                }
            }
            let skips = position.feed.skips_to().is_some();
            if skips { ControlFlow::Break(Ok(SeekProgress::Further)) } else { ControlFlow::Continue(()) }
        });
        if let Some(stopped) = stopped {
            if let Some(offset) = self.position.feed.skips_to() {
                self.position.feed.pass((offset - self.position.feed.offset) as usize);
                self.continue_at_position()?;
            }
            return stopped;
        }
        if self.enter_continuation(extent) {
            return Ok(SeekProgress::Further);
        }
        if extent == Extent::WHOLE && !self.position.feed.is_in_long_line() {
            let mut sink = StopAtMoment { replay: &mut self.replay, at, events_from, refused: false };
            let finished = self.position.feed.finish(self.chunks.pending(), &mut sink);
            finished.map_err(|error| ReadError::first_line(&self.path, error))?;
            self.finished = !sink.refused;
        }
        Ok(SeekProgress::ToTheMoment)
    }

    /// Moves the source to the current position.
    fn continue_at_position(&mut self) -> Result<(), ReadError> {
        self.chunks.clear();
        let moved = self.chunks.source.seek(self.position.feed.offset);
        moved.map_err(|source| ReadError::io(&self.path, source))
    }

    fn enter_continuation(&mut self, extent: Extent) -> bool {
        if self.position.in_continuation || !extent.in_continuation {
            return false;
        }
        let Some(file) = open_continuation(&self.path, &self.replay.model) else { return false };
        self.position.in_continuation = true;
        self.position.feed.start_continuation();
        self.chunks = Chunks::new(Source::plain(file, 0), Source::file_bytes_read);
        true
    }

    /// Reopens the file after the writer cut the trace down.
    ///
    /// The old position and checkpoints are not valid in the new file.
    fn reopen_if_replaced(&mut self) -> Result<(), ReadError> {
        let found = std::fs::metadata(&self.path).map(|found| (found.dev(), found.ino()));
        if found.is_ok_and(|found| found != self.identity) {
            let mut checkpoints = std::mem::take(&mut self.checkpoints);
            checkpoints.clear();
            *self = Self { checkpoints, ..Self::open(&self.path, self.replay.history_length())? };
        }
        Ok(())
    }

    /// Goes to the nearest checkpoint before the moment, or to the start, unless the current state is nearer.
    fn begin_close_to(&mut self, at: SeekTarget) -> Result<(), ReadError> {
        let is_usable = at.is_ahead_of(&self.replay.model);
        let nearest = self.checkpoints.before(at).next();
        let nearest = nearest.filter(|it| !is_usable || it.model.events() > self.replay.model.events());
        if is_usable && nearest.is_none() {
            return Ok(());
        }
        let nearest = nearest.map(Checkpoint::state);
        self.begin_at(nearest)
    }

    /// Goes to the state of a checkpoint, or to the start.
    fn begin_at(&mut self, state: Option<(ReadPosition, Model)>) -> Result<(), ReadError> {
        let was_in_continuation = self.position.in_continuation;
        match state {
            Some((position, model)) => {
                self.replay = Replay::from_model(model, self.replay.history_length());
                self.position = position;
            }
            None => {
                self.replay.restart();
                self.position = ReadPosition::default();
            }
        }
        self.finished = false;
        match (was_in_continuation, self.position.in_continuation) {
            (true, false) => {
                (self.chunks.source, self.identity) =
                    Source::open(&self.path).map_err(|source| ReadError::io(&self.path, source))?;
            }
            (false, true) => {
                if let Some(file) = open_continuation(&self.path, &self.replay.model) {
                    self.chunks.source = Source::plain(file, 0);
                }
            }
            _ => {}
        }
        self.continue_at_position()
    }

    /// Adds the state of a follower of the same trace as a checkpoint, if one is due.
    pub fn add_checkpoint(&mut self, position: &ReadPosition, model: &Model) {
        self.checkpoints.add_if_due(position, model);
    }
}

/// Progress of a seek.
enum SeekProgress {
    /// More is left to read.
    Further,
    /// Reached the moment, or the end of the extent.
    ToTheMoment,
    /// Cancelled before the moment.
    Cancelled,
}

/// Refuses events after the moment.
struct StopAtMoment<'r> {
    replay: &'r mut Replay,
    at: SeekTarget,
    /// Number of the last event that is not kept.
    events_from: u64,
    refused: bool,
}

impl Sink for StopAtMoment<'_> {
    #[inline]
    fn take(&mut self, record: Record<'_>) -> ControlFlow<()> {
        if self.at.is_before(&record, &self.replay.model) {
            self.refused = true;
            return ControlFlow::Break(());
        }
        if self.replay.model.events() < self.events_from {
            self.replay.model.apply(record);
            return ControlFlow::Continue(());
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
