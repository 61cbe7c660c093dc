//! One trace that is followed, from its first line to its writer's end.

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
    /// A compressed one: read at the first poll, as a whole.
    Whole,
    /// Nothing more will come.
    Done,
}

/// The most bytes of all copies of the past together.
const CHECKPOINT_BUDGET: usize = 256 << 20;

/// The number of latest events kept for the screen.
const HISTORY_LENGTH: usize = 5_000;

/// A trace and the model of what it said so far.
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

/// What a poll brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Polled {
    /// Something to show.
    pub changed: bool,
    /// There is more to read at once.
    pub more: bool,
}

impl Followed {
    /// Opens a trace and reads its beginning; the rest is read by [`Followed::poll`].
    ///
    /// # Errors
    ///
    /// If it cannot be read, is empty or is no trace that this memlab knows.
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

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The state after what was read so far, unless that is only the beginning; and how many garbled lines were passed over.
    pub fn caught_up(&self) -> Option<(&Model, u64)> {
        let is_opening = matches!(self.state, ProcessState::Opening { .. });
        (!is_opening && self.replay.model.header().is_some()).then_some((&self.replay.model, self.skipped))
    }

    /// Whether its writer is there.
    pub fn state(&self) -> ProcessState {
        self.state
    }

    /// How far reading it has come.
    pub fn progress(&self) -> Progress {
        let (bytes_read, bytes_total) = match self.state {
            ProcessState::Opening { read, total } => (read, total),
            _ => (1, 1),
        };
        Progress { bytes_read, bytes_total, events: self.replay.model.events() }
    }

    /// Sets whose lines snapshots show; `None`: libraries' too where the user's only call them.
    pub fn set_scope(&mut self, scope: Option<Scope>) {
        self.replay.model.set_scope(scope);
    }

    /// What it said so far.
    pub fn model(&self) -> &Model {
        &self.replay.model
    }

    /// Why it cannot be read any further.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Brings the past, see [`Followed::models`], to a moment. Returns whether the trace still has that moment; otherwise the past
    /// is the earliest state that it has. `None`: the trace can no longer be read, see [`Followed::failure`].
    pub fn seek_past(&mut self, at: SeekTarget) -> Option<bool> {
        self.seek(at, &|| false).map(|sought| sought != SeekOutcome::NotKept)
    }

    /// What it said so far, and the state at the moment sought last.
    pub fn models(&self) -> (&Model, Option<&Model>) {
        (&self.replay.model, self.past.as_ref().map(|past| &past.replay().model))
    }

    /// Whether its writer is gone.
    pub fn is_over(&self) -> bool {
        self.state.is_over()
    }

    /// What it shows now.
    pub fn snapshot(&mut self, detail: Detail) -> ProcessSnapshot {
        let mut process = ProcessSnapshot::of(&self.replay, &self.path, self.state, detail);
        process.skipped_lines = self.skipped;
        process.failure.clone_from(&self.failure);
        if !self.is_over() {
            self.rates.fill(&mut process);
        }
        process
    }

    /// The run with the live figures of an earlier moment. `cancelled` is asked while that is looked for; `None` if it
    /// was.
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

    /// Who holds what on a device at a moment. `None` if `cancelled`.
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

    /// Brings `past` to a moment; `None` if `cancelled`, or if the trace can no longer be read, which is then said.
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

    /// While a long trace is opened, only the events near its end are kept.
    fn keep_events_near_the_end(&mut self) {
        /// The lines of the events that are kept, and others between them, which one poll may end in front of.
        const LINES: u64 = (16 << 20) + Follower::POLL_BYTES;
        /// The most that the log reserves beyond the last line.
        const RESERVED: u64 = 256 << 20;
        let Reading::Follows(follower) = &self.reading else { return };
        // A trace that is followed, and not opened any more, is polled often: its file is not looked at for this.
        let is_far = matches!(self.state, ProcessState::Opening { .. })
            && end_of(&self.path).is_ok_and(|(length, is_reserved)| {
                let near = if is_reserved { LINES + RESERVED } else { LINES };
                length.saturating_sub(follower.extent().offset) > near
            });
        self.replay.set_history_length(if is_far { 0 } else { HISTORY_LENGTH });
    }

    /// Checkpoints while reading, so that later seeks into the past are short.
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

    /// Reads what is new, but not for long. `cancelled` is asked while a compressed trace is read.
    pub fn poll(&mut self, cancelled: &dyn Fn() -> bool) -> Polled {
        self.keep_events_near_the_end();
        let polled = match &mut self.reading {
            Reading::Follows(follower) => match follower.poll(&mut self.replay) {
                Ok(polled) => {
                    self.skipped = follower.skipped().count;
                    if polled.restarted {
                        self.past = None; // It would keep the file that was replaced.
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

    /// Brings the state up to date; whether it changed.
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
            // The lines after a hole are read by the next poll.
            follower.set_writer_dead();
        }
        state
    }
}

/// The length of a trace, and whether it ends with space that its writer reserved.
fn end_of(path: &Path) -> io::Result<(u64, bool)> {
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    let mut last = [b'\n'];
    if let Some(before) = length.checked_sub(1) {
        file.read_exact_at(&mut last, before)?;
    }
    Ok((length, last == [0]))
}
