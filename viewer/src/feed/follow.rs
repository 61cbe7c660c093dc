//! One trace that is followed, from its first line to its writer's end.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use memlab_trace::{Follower, Model, ReadError, load};

use super::writer::{Writer, writer};
use crate::snapshot::{ProcessSnapshot, State};

/// How often the writer is looked for.
const CHECK: Duration = Duration::from_millis(250);
/// A trace that grew so recently has a writer, whatever the process list says (it may be in a container).
const GROWING: Duration = Duration::from_secs(2);
/// Without any sign of its writer's machine, a trace this old has none.
const QUIET: Duration = Duration::from_secs(10);
/// A poll reads about this much.
const POLL_BYTES: u64 = 16 << 20;

enum Reading {
    /// A plain trace.
    Follows(Follower),
    /// A compressed one: read at the first poll, as a whole.
    Whole,
    /// Nothing more will come.
    Done,
}

/// A trace and the model of what it said so far.
pub struct Followed {
    path: PathBuf,
    reading: Reading,
    model: Model,
    state: State,
    read: u64,
    skipped: u64,
    failure: Option<String>,
    grew: Option<Instant>,
    checked: Option<Instant>,
    writer_is_dead: bool,
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
        let mut model = Model::new();
        let mut read = 0;
        let reading = match Follower::open(path) {
            Ok(mut follower) => {
                let polled = follower.poll(&mut model)?;
                if model.header().is_none() && !polled.more {
                    return Err(ReadError::Empty { path: path.to_owned() });
                }
                read = if polled.more { POLL_BYTES } else { 0 };
                Reading::Follows(follower)
            }
            Err(ReadError::Compressed { .. }) => Reading::Whole,
            Err(error) => return Err(error),
        };
        Ok(Self {
            path: path.to_owned(),
            reading,
            model,
            state: State::Opening { read: 0, total: std::fs::metadata(path).map_or(0, |metadata| metadata.len()) },
            read,
            skipped: 0,
            failure: None,
            grew: None,
            checked: None,
            writer_is_dead: false,
        })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether its writer is gone.
    pub fn is_over(&self) -> bool {
        self.state.is_over()
    }

    /// What it shows now.
    pub fn snapshot(&self) -> ProcessSnapshot {
        ProcessSnapshot {
            skipped_lines: self.skipped,
            failure: self.failure.clone(),
            ..ProcessSnapshot::of(&self.model, &self.path, self.state)
        }
    }

    /// Reads what is new, but not for long. `cancelled` is asked while a compressed trace is read.
    pub fn poll(&mut self, cancelled: &dyn Fn() -> bool) -> Polled {
        let polled = match &mut self.reading {
            Reading::Follows(follower) => match follower.poll(&mut self.model) {
                Ok(polled) => {
                    self.skipped = follower.skipped().count;
                    if polled.events > 0 || polled.restarted {
                        self.grew = Some(Instant::now());
                    }
                    if polled.restarted {
                        self.read = 0;
                    }
                    self.read += if polled.more { POLL_BYTES } else { 0 };
                    Polled { changed: polled.events > 0 || polled.restarted, more: polled.more }
                }
                Err(error) => self.fail(&error),
            },
            Reading::Whole => self.read_whole(cancelled),
            Reading::Done => return Polled::default(),
        };
        let changed = polled.changed | self.update_state(polled.more);
        Polled { changed, ..polled }
    }

    fn fail(&mut self, error: &ReadError) -> Polled {
        self.failure = Some(error.to_string());
        self.reading = Reading::Done;
        self.state = State::Killed;
        Polled { changed: true, more: false }
    }

    fn read_whole(&mut self, cancelled: &dyn Fn() -> bool) -> Polled {
        self.reading = Reading::Done;
        let progress = |_| if cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        match load(&self.path, &mut { progress }) {
            Ok(loaded) => {
                self.model = loaded.model;
                self.skipped = loaded.skipped.count;
                if loaded.truncated {
                    self.failure = Some("the trace is cut short".to_owned());
                }
                self.state = self.ended().unwrap_or(State::Killed);
                Polled { changed: true, more: false }
            }
            Err(error) => self.fail(&error),
        }
    }

    fn ended(&self) -> Option<State> {
        self.model.end().map(|end| State::Ended { code: end.code, signal: end.signal })
    }

    /// Brings the state up to date; whether it changed.
    fn update_state(&mut self, more: bool) -> bool {
        if matches!(self.reading, Reading::Done) {
            return false;
        }
        let before = self.state;
        if more && matches!(before, State::Opening { .. }) {
            let total = std::fs::metadata(&self.path).map_or(0, |metadata| metadata.len());
            self.state = State::Opening { read: self.read.min(total), total };
            return before != self.state;
        }
        if let Some(ended) = self.ended() {
            self.state = ended;
            return before != self.state;
        }
        if matches!(before, State::Opening { .. }) || self.checked.is_none_or(|checked| checked.elapsed() >= CHECK) {
            self.checked = Some(Instant::now());
            self.state = self.look_for_writer();
        }
        before != self.state
    }

    fn look_for_writer(&mut self) -> State {
        let Some(header) = self.model.header() else { return State::Recording };
        // What was there when the file was opened says nothing about now.
        let opening = matches!(self.state, State::Opening { .. });
        let growing = !opening && self.grew.is_some_and(|grew| grew.elapsed() < GROWING);
        let is_dead = match writer(header) {
            Writer::Runs => return State::Recording,
            Writer::Stopped => return State::Stopped,
            Writer::Dead => !growing,
            Writer::Elsewhere => {
                let written = std::fs::metadata(&self.path).and_then(|metadata| metadata.modified()).ok();
                !growing && written.and_then(|written| written.elapsed().ok()).is_none_or(|age| age > QUIET)
            }
        };
        if !is_dead {
            return State::Recording;
        }
        if !self.writer_is_dead {
            self.writer_is_dead = true;
            if let Reading::Follows(follower) = &mut self.reading {
                // The lines after a hole are read by the next poll.
                follower.writer_is_dead();
            }
        }
        State::Killed
    }
}
