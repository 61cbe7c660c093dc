//! Follows one trace from its first line to its writer's end.

use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memlab_trace::{
    Extent, Follower, Model, Progress, ReadError, Replay, Scope, SeekOutcome, SeekTarget, SeekableReplay,
};

use super::rates::Rates;
use super::writer::WriterState;
use crate::snapshot::{ProcessSnapshot, ProcessState};
use memlab_base::query::{Cursor, Detail, MomentHoldings};

enum Reading {
    /// A plain trace.
    Follows(Follower),
    /// A compressed trace, read whole at the first poll.
    Whole,
    /// Complete: nothing more will come.
    Done,
}

/// Memory limit of all checkpoints together, in bytes.
const CHECKPOINT_BUDGET: usize = 256 << 20;

/// Number of latest events kept for the screen.
const HISTORY_LENGTH: usize = 5_000;

/// A trace and the model of everything read so far.
pub struct Followed {
    path: PathBuf,
    reading: Reading,
    replay: Replay,
    past: Option<SeekableReplay>,
    budget: usize,
    rates: Rates,
    state: ProcessState,
    skipped: u64,
    failure: Option<String>,
    writer: WriterState,
}

/// Result of a poll.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Polled {
    /// True if the screen has something new to show.
    pub changed: bool,
    /// True if more can be read at once.
    pub more: bool,
}

impl Followed {
    /// Opens a trace and reads its beginning; the rest is read by [`Followed::poll`].
    ///
    /// # Errors
    ///
    /// If the file cannot be read, is empty, or is not a trace of a known version.
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        let mut replay = Replay::with_history(HISTORY_LENGTH);
        let reading = match Follower::open(path) {
            Ok(mut follower) => {
                let polled = follower.begin(&mut replay)?;
                if replay.model.header().is_none() && !polled.more {
                    return Err(ReadError::Empty { path: path.to_owned() });
                }
                Reading::Follows(follower)
            }
            Err(ReadError::Compressed { .. }) => Reading::Whole,
            Err(error) => return Err(error),
        };
        Ok(Self {
            path: path.to_owned(),
            reading,
            replay,
            past: None,
            budget: CHECKPOINT_BUDGET,
            rates: Rates::default(),
            state: ProcessState::Opening {
                read: 0,
                total: std::fs::metadata(path).map_or(0, |metadata| metadata.len()),
            },
            skipped: 0,
            failure: None,
            writer: WriterState::default(),
        })
    }

    /// Path of the trace.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the model and the number of garbled lines skipped; `None` while the trace is still being opened.
    pub fn caught_up(&self) -> Option<(&Model, u64)> {
        let is_opening = matches!(self.state, ProcessState::Opening { .. });
        (!is_opening && self.replay.model.header().is_some()).then_some((&self.replay.model, self.skipped))
    }

    /// State of the writer.
    pub fn state(&self) -> ProcessState {
        self.state
    }

    /// Progress of reading.
    pub fn progress(&self) -> Progress {
        let (bytes_read, bytes_total) = match self.state {
            ProcessState::Opening { read, total } => (read, total),
            _ => (1, 1),
        };
        Progress { bytes_read, bytes_total, events: self.replay.model.events() }
    }

    /// Sets the scope of lines in snapshots; `None`: also library lines where the user's lines only call libraries.
    pub fn set_scope(&mut self, scope: Option<Scope>) {
        self.replay.model.set_scope(scope);
    }

    /// The model of everything read so far.
    pub fn model(&self) -> &Model {
        &self.replay.model
    }

    /// Reason why the trace cannot be read any further.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Moves the past, see [`Followed::models`], to a moment.
    ///
    /// Returns true if the trace still has that moment; otherwise the past is the earliest state that the trace has. `None`:
    /// the trace can no longer be read, see [`Followed::failure`].
    pub fn seek_past(&mut self, at: SeekTarget) -> Option<bool> {
        self.seek(at, &|| false).map(|sought| sought != SeekOutcome::NotKept)
    }

    /// The model of everything read so far, and the model at the moment sought last.
    pub fn models(&self) -> (&Model, Option<&Model>) {
        (&self.replay.model, self.past.as_ref().map(|past| &past.replay().model))
    }

    /// Returns true if the writer is gone.
    pub fn is_over(&self) -> bool {
        self.state.is_over()
    }

    /// Returns the current snapshot.
    pub fn snapshot(&mut self, detail: Detail) -> ProcessSnapshot {
        let mut process = ProcessSnapshot::of(&self.replay, &self.path, self.state, detail);
        process.skipped_lines = self.skipped;
        process.failure.clone_from(&self.failure);
        if !self.is_over() {
            self.rates.fill(&mut process);
        }
        process
    }

    /// Returns the run with the live figures of an earlier moment.
    ///
    /// Calls `cancelled` during the seek; returns `None` once it returns true.
    pub fn snapshot_at(
        &mut self,
        cursor: &Cursor,
        detail: Detail,
        cancelled: &dyn Fn() -> bool,
    ) -> Option<ProcessSnapshot> {
        let at = if cursor.trace == self.path {
            cursor.at
        } else {
            let start = self.replay.model.header().map_or(0, |header| header.start_unix_ns);
            SeekTarget::Time(cursor.unix_ns.saturating_sub(start))
        };
        let whole = self.snapshot(detail.of_run());
        let sought = self.seek(at, cancelled)?;
        let Some(past) = &self.past else { return Some(whole) };
        Some(whole.at(past.replay(), sought == SeekOutcome::NotKept, detail))
    }

    /// Returns the holders of a device's memory at a moment.
    ///
    /// `None` if `cancelled`.
    pub fn holdings(
        &mut self,
        device: i32,
        at: SeekTarget,
        cancelled: &dyn Fn() -> bool,
    ) -> Option<Arc<MomentHoldings>> {
        self.seek(at, cancelled)?;
        let model = &self.past.as_ref()?.replay().model;
        Some(Arc::new(MomentHoldings {
            time: model.time(),
            categories: model.categories(device).to_vec(),
            lines: model.lines(device),
            layers: model.layers(device),
        }))
    }

    /// Moves `past` to a moment; `None` if `cancelled`, or if the trace can no longer be read, which sets `failure`.
    fn seek(&mut self, at: SeekTarget, cancelled: &dyn Fn() -> bool) -> Option<SeekOutcome> {
        let extent = match &self.reading {
            Reading::Follows(follower) => follower.extent(),
            Reading::Whole | Reading::Done => Extent::WHOLE,
        };
        let progress = &mut |_| if cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        let sought = self.open_past().and_then(|past| past.seek(at, extent, progress));
        match sought {
            Ok(SeekOutcome::Cancelled) => None,
            Ok(sought) => {
                if let Some(past) = &mut self.past {
                    past.adopt_names(&self.replay.model);
                }
                Some(sought)
            }
            Err(error) => {
                self.failure = Some(error.to_string());
                None
            }
        }
    }

    /// Keeps no events far from the end while a long trace is opened.
    fn keep_events_near_the_end(&mut self) {
        /// Longest stretch of lines that holds the kept events, plus one poll, which may end before them.
        const LINES: u64 = (16 << 20) + Follower::POLL_BYTES;
        /// Largest space that the log reserves beyond the last line.
        const RESERVED: u64 = 256 << 20;
        let Reading::Follows(follower) = &self.reading else { return };
        // An opened trace is polled often, so its file is checked only during opening.
        let is_far = matches!(self.state, ProcessState::Opening { .. })
            && end_of(&self.path).is_ok_and(|(length, is_reserved)| {
                let near = if is_reserved { LINES + RESERVED } else { LINES };
                length.saturating_sub(follower.extent().offset) > near
            });
        self.replay.set_history_length(if is_far { 0 } else { HISTORY_LENGTH });
    }

    /// Saves a checkpoint while reading, so that later seeks into the past are short.
    fn add_checkpoint(&mut self) {
        let Reading::Follows(follower) = &self.reading else { return };
        let position = follower.position();
        if self.open_past().is_ok()
            && let Some(past) = &mut self.past
        {
            past.add_checkpoint(&position, &self.replay.model);
        }
    }

    /// Divides the checkpoint budget among `count` traces.
    pub fn split_checkpoint_budget(&mut self, count: usize) {
        self.budget = CHECKPOINT_BUDGET / count.max(1);
        if let Some(past) = &mut self.past {
            past.set_checkpoint_budget(self.budget);
        }
    }

    fn open_past(&mut self) -> Result<&mut SeekableReplay, ReadError> {
        match &mut self.past {
            Some(past) => Ok(past),
            empty => {
                let past = empty.insert(SeekableReplay::open(&self.path, HISTORY_LENGTH)?);
                past.set_checkpoint_budget(self.budget);
                Ok(past)
            }
        }
    }

    /// Reads new events for a limited time.
    ///
    /// Calls `cancelled` while it reads a compressed trace.
    pub fn poll(&mut self, cancelled: &dyn Fn() -> bool) -> Polled {
        self.keep_events_near_the_end();
        let polled = match &mut self.reading {
            Reading::Follows(follower) => match follower.poll(&mut self.replay) {
                Ok(polled) => {
                    self.skipped = follower.skipped().count;
                    if polled.restarted {
                        self.past = None; // It would keep the replaced file.
                    }
                    if polled.events > 0 || polled.restarted {
                        self.writer.on_growth();
                    }
                    Polled { changed: polled.events > 0 || polled.restarted, more: polled.more }
                }
                Err(error) => self.fail(&error),
            },
            Reading::Whole => self.read_whole(cancelled),
            Reading::Done => return Polled::default(),
        };
        if polled.more {
            self.add_checkpoint();
        }
        let changed = polled.changed | self.update_state(polled.more);
        Polled { changed, ..polled }
    }

    fn fail(&mut self, error: &ReadError) -> Polled {
        self.failure = Some(error.to_string());
        self.reading = Reading::Done;
        self.state = ProcessState::Unreadable;
        Polled { changed: true, more: false }
    }

    fn read_whole(&mut self, cancelled: &dyn Fn() -> bool) -> Polled {
        self.reading = Reading::Done;
        let progress = &mut |_| if cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        match self.open_past().and_then(|past| past.seek(SeekTarget::End, Extent::WHOLE, progress)) {
            Ok(_) => {
                if let Some(past) = &self.past {
                    self.replay = past.replay().clone();
                    self.skipped = past.skipped().count;
                    self.failure = past.truncated().then(|| "the trace is cut short".to_owned());
                }
                self.state = self.ended().unwrap_or(ProcessState::Killed);
                Polled { changed: true, more: false }
            }
            Err(error) => self.fail(&error),
        }
    }

    fn ended(&self) -> Option<ProcessState> {
        self.replay.model.end().map(|end| ProcessState::Ended { code: end.code, signal: end.signal })
    }

    /// Updates the state.
    ///
    /// Returns true if it changed.
    fn update_state(&mut self, more: bool) -> bool {
        if matches!(self.reading, Reading::Done) {
            return false;
        }
        let before = self.state;
        if more && matches!(before, ProcessState::Opening { .. }) {
            let total = std::fs::metadata(&self.path).map_or(0, |metadata| metadata.len());
            let read = match &self.reading {
                Reading::Follows(follower) => follower.extent().offset,
                Reading::Whole | Reading::Done => 0,
            };
            self.state = ProcessState::Opening { read: read.min(total), total };
            return before != self.state;
        }
        if let Some(ended) = self.ended() {
            self.state = ended;
            return before != self.state;
        }
        if matches!(before, ProcessState::Opening { .. }) || self.writer.is_check_due() {
            self.state = self.check_writer();
        }
        before != self.state
    }

    fn check_writer(&mut self) -> ProcessState {
        let is_opening = matches!(self.state, ProcessState::Opening { .. });
        let state = self.writer.check(self.replay.model.header(), &self.path, is_opening);
        if state == ProcessState::Killed
            && let Reading::Follows(follower) = &mut self.reading
        {
            // The next poll reads the lines after a hole.
            follower.set_writer_dead();
        }
        state
    }
}

/// Returns the length of a trace, and true if it ends with space reserved by its writer.
fn end_of(path: &Path) -> io::Result<(u64, bool)> {
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    let mut last = [b'\n'];
    if let Some(before) = length.checked_sub(1) {
        file.read_exact_at(&mut last, before)?;
    }
    Ok((length, last == [0]))
}
