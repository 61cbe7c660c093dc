//! A trace as it was at any moment.
//!
//! Going forward replays what lies between; going back begins at the nearest checkpoint: a copy of the state, made on
//! the way every so many events. The more the copies weigh, the fewer are kept.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::feed::{Feed, Skipped};
use super::{BUFFER, Extent, LONGEST_LINE, Progress, ReadError, Sink, beside, is_zstd, open_file};
use crate::model::Model;
use crate::record::Record;
use crate::replay::Replay;

/// Events between the first checkpoints: some 20 ms of replay.
const FIRST_SPACING: u64 = 1 << 17;
const CHECKPOINTS: usize = 64;
/// What checkpoints may weigh together, in bytes.
const BUDGET: usize = 256 << 20;

/// A moment of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekTarget {
    /// Before the first event later than this: nanoseconds since the trace's start.
    Time(u64),
    /// After so many events.
    Event(u64),
    /// After all there is.
    End,
}

impl SeekTarget {
    /// After the event of this number, which happened at `time`; by the time alone where the number is not known (0).
    pub fn event(number: u64, time: u64) -> Self {
        if number > 0 { Self::Event(number) } else { Self::Time(time) }
    }

    /// Whether a state is no later than this.
    pub fn is_ahead_of(self, model: &Model) -> bool {
        match self {
            Self::Time(time) => model.time() <= time,
            Self::Event(events) => model.events() <= events,
            Self::End => true,
        }
    }

    /// Whether a record is an event after this, when it comes in a state to which it was not added yet.
    #[inline]
    pub fn is_before(self, record: &Record<'_>, model: &Model) -> bool {
        record.time().is_some_and(|time| match self {
            Self::Time(until) => time > until,
            Self::Event(events) => model.events() >= events,
            Self::End => false,
        })
    }
}

/// What became of a [`SeekableReplay::seek`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekOutcome {
    /// The state is that of the moment.
    Found,
    /// The trace was cut down to stay within its bounds and no longer has that moment: the state is the earliest it has.
    NotKept,
    /// The progress callback broke off: the state is somewhere on the way.
    Cancelled,
}

/// A trace that can be looked at as it was.
pub struct SeekableReplay {
    path: PathBuf,
    identity: (u64, u64),
    source: Source,
    /// Reading the file beside the trace.
    is_beside: bool,
    feed: Feed,
    replay: Replay,
    /// Read but not yet replayed.
    buffer: Vec<u8>,
    filled: usize,
    /// In a line too long to be one, up to its newline.
    discarding: bool,
    /// What stood after the last newline was replayed too.
    finished: bool,
    /// The compressed file ends too early.
    truncated: bool,
    checkpoints: Vec<Checkpoint>,
    spacing: u64,
    budget: usize,
}

/// Where in a trace a follower is.
pub struct FollowerPosition {
    pub(super) is_beside: bool,
    pub(super) feed: Feed,
}

/// A state to begin at.
struct Checkpoint {
    is_beside: bool,
    feed: Feed,
    model: Model,
    heap_bytes: usize,
}

impl SeekableReplay {
    /// Opens a trace, plain or compressed, at its beginning. With the state come the latest `events` events.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened.
    pub fn open(path: &Path, events: usize) -> Result<Self, ReadError> {
        let (source, identity) = Source::open(path).map_err(|source| io_error(path, source))?;
        Ok(Self {
            path: path.to_owned(),
            identity,
            source,
            is_beside: false,
            feed: Feed::default(),
            replay: Replay::with_history(events),
            buffer: vec![0; BUFFER],
            filled: 0,
            discarding: false,
            finished: false,
            truncated: false,
            checkpoints: Vec::new(),
            spacing: FIRST_SPACING,
            budget: BUDGET,
        })
    }

    /// Has copies of the state weigh no more than this together, in bytes; 256 MiB unless told.
    pub fn set_checkpoint_budget(&mut self, bytes: usize) {
        self.budget = bytes;
    }

    /// The state at the moment last sought.
    pub fn model(&self) -> &Model {
        &self.replay.model
    }

    /// That state with the events before it; after a step back only those since a checkpoint.
    pub fn replay(&self) -> &Replay {
        &self.replay
    }

    /// Garbled lines passed over on the way from the beginning.
    pub fn skipped(&self) -> &Skipped {
        &self.feed.skipped
    }

    /// Gives layers and threads the names that a later state knows.
    pub fn adopt_names(&mut self, later: &Model) {
        self.replay.model.adopt_names(later);
    }

    /// Whether the trace was found to end in the middle of a compressed frame.
    pub fn truncated(&self) -> bool {
        self.truncated
    }

    /// That state, for good.
    pub fn into_replay(self) -> Replay {
        self.replay
    }

    /// Makes the state that of the moment, reading no further than `extent`. `progress` is called every MiB or so; if
    /// it breaks, the state is left where it is.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, is no trace, or was made by a newer memlab.
    pub fn seek(
        &mut self,
        at: SeekTarget,
        extent: Extent,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<SeekOutcome, ReadError> {
        self.reopen_if_replaced()?;
        self.begin_close_to(at)?;
        let mut next_report = self.feed.offset;
        while !self.finished && self.advance(at, extent)? {
            self.keep_checkpoint();
            if self.feed.offset >= next_report {
                next_report = self.feed.offset + BUFFER as u64;
                let (bytes_read, events) = (self.feed.offset, self.replay.model.events());
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

    /// Replays what is read, or reads more; false at the moment or at the end.
    fn advance(&mut self, at: SeekTarget, extent: Extent) -> Result<bool, ReadError> {
        if self.discarding {
            let end = memchr::memchr(b'\n', &self.buffer[..self.filled]);
            self.discarding = end.is_none();
            self.consume(end.map_or(self.filled, |length| length + 1), true);
        }
        let mut sink = Stopping { replay: &mut self.replay, at, refused: false };
        let fed = self.feed.feed(&self.buffer[..self.filled], usize::MAX, &mut sink);
        let fed = fed.map_err(|error| ReadError::first_line(&self.path, error))?;
        self.consume(fed.consumed, false);
        if fed.refused {
            return Ok(false);
        }
        if let Some(offset) = self.feed.skips_to() {
            self.feed.pass((offset - self.feed.offset) as usize);
            self.filled = 0;
        }
        if self.filled == self.buffer.len() {
            self.make_room();
        }
        if self.read(extent)? || self.go_on_beside(extent) {
            return Ok(true);
        }
        if extent == Extent::WHOLE && !self.discarding {
            let mut sink = Stopping { replay: &mut self.replay, at, refused: false };
            let finished = self.feed.finish(&self.buffer[..self.filled], &mut sink);
            finished.map_err(|error| ReadError::first_line(&self.path, error))?;
            self.finished = !sink.refused;
        }
        Ok(false)
    }

    /// Reads more of the file; whether there was more.
    fn read(&mut self, extent: Extent) -> Result<bool, ReadError> {
        let position = self.feed.offset + self.filled as u64;
        let room = (self.buffer.len() - self.filled) as u64;
        let is_bounded = extent.in_continuation == self.is_beside;
        let wanted = if is_bounded { room.min(extent.offset.saturating_sub(position)) } else { room };
        let read = match self.source.read_at(position, &mut self.buffer[self.filled..][..wanted as usize]) {
            Ok(read) => read,
            // A compressed trace that was cut, or damage in it: what came before still counts.
            Err(_) if self.replay.model.header().is_some() => {
                self.truncated = true;
                0
            }
            Err(source) => return Err(io_error(&self.path, source)),
        };
        self.filled += read;
        Ok(read > 0)
    }

    /// Takes `bytes` from the front of the buffer; `unseen`: the feed does not know of them.
    fn consume(&mut self, bytes: usize, unseen: bool) {
        self.buffer.copy_within(bytes..self.filled, 0);
        self.filled -= bytes;
        if unseen {
            self.feed.pass(bytes);
        }
    }

    /// The buffer is full, and no line in it.
    fn make_room(&mut self) {
        if self.buffer.len() < LONGEST_LINE {
            self.buffer.resize(self.buffer.len() * 2, 0);
        } else {
            self.feed.overlong();
            self.consume(self.filled, true);
            self.discarding = true;
        }
    }

    fn go_on_beside(&mut self, extent: Extent) -> bool {
        if self.is_beside || !extent.in_continuation {
            return false;
        }
        let Some(file) = beside(&self.path, &self.replay.model) else { return false };
        self.source = Source::Plain(file);
        self.is_beside = true;
        self.filled = 0;
        self.feed.continue_beside();
        true
    }

    /// The writer cuts a long trace down: what was read of the old file is of no use for the new one.
    fn reopen_if_replaced(&mut self) -> Result<(), ReadError> {
        let found = std::fs::metadata(&self.path).map(|found| (found.dev(), found.ino()));
        if found.is_ok_and(|found| found != self.identity) {
            let budget = self.budget;
            *self = Self::open(&self.path, self.replay.history_length())?;
            self.budget = budget;
        }
        Ok(())
    }

    /// Goes to the best checkpoint before the moment, unless the state at hand is better; to the beginning if there is none.
    fn begin_close_to(&mut self, at: SeekTarget) -> Result<(), ReadError> {
        let is_usable = at.is_ahead_of(&self.replay.model);
        let mut before = self.checkpoints.iter().rev().filter(|checkpoint| at.is_ahead_of(&checkpoint.model));
        let nearest = before.next();
        // Where events are wanted too, from one further back, so that there are some.
        let best = if self.replay.history_length() > 0 { before.next().or(nearest) } else { nearest };
        let best = best.filter(|best| !is_usable || best.model.events() > self.replay.model.events());
        if is_usable && best.is_none() {
            return Ok(());
        }
        let was_beside = self.is_beside;
        match best {
            Some(checkpoint) => {
                self.replay = Replay::from_model(checkpoint.model.clone(), self.replay.history_length());
                (self.feed, self.is_beside) = (checkpoint.feed.clone(), checkpoint.is_beside);
            }
            None => {
                self.replay.restart();
                (self.feed, self.is_beside) = (Feed::default(), false);
            }
        }
        (self.filled, self.discarding, self.finished) = (0, false, false);
        match (was_beside, self.is_beside) {
            (true, false) => {
                (self.source, self.identity) =
                    Source::open(&self.path).map_err(|source| io_error(&self.path, source))?;
            }
            (false, true) => {
                if let Some(file) = beside(&self.path, &self.replay.model) {
                    self.source = Source::Plain(file);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Takes note of a state that a follower of the same trace has come to, as a place to begin at.
    pub fn add_checkpoint(&mut self, position: &FollowerPosition, model: &Model) {
        if self.is_worth_keeping(model) {
            self.keep(position.is_beside, position.feed.clone(), model.clone());
        }
    }

    fn keep_checkpoint(&mut self) {
        if !self.discarding && self.is_worth_keeping(&self.replay.model) {
            self.keep(self.is_beside, self.feed.clone(), self.replay.model.clone());
        }
    }

    /// Whether enough happened since the last checkpoint: copying a large state takes as long as replaying many events.
    fn is_worth_keeping(&self, model: &Model) -> bool {
        const BYTES_COPIED_PER_EVENT: usize = 64;
        let last = self.checkpoints.last().map_or(0, |checkpoint| checkpoint.model.events());
        let least = self.spacing.max((model.heap_bytes() / BYTES_COPIED_PER_EVENT) as u64);
        model.events() >= last.saturating_add(least)
    }

    fn keep(&mut self, is_beside: bool, feed: Feed, model: Model) {
        let heap_bytes = model.heap_bytes();
        self.checkpoints.push(Checkpoint { is_beside, feed, model, heap_bytes });
        let total = |checkpoints: &[Checkpoint]| checkpoints.iter().map(|each| each.heap_bytes).sum::<usize>();
        while self.checkpoints.len() > CHECKPOINTS || total(&self.checkpoints) > self.budget {
            self.spacing = self.spacing.saturating_mul(2);
            let mut index = 0;
            self.checkpoints.retain(|_| {
                index += 1;
                index % 2 == 0
            });
        }
    }
}

/// Refuses what comes after the moment.
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

/// The bytes of a trace.
enum Source {
    Plain(File),
    Compressed(Box<Decompressed>),
}

/// A compressed file, which can only be read from its beginning.
struct Decompressed {
    decoder: zstd::Decoder<'static, BufReader<File>>,
    position: u64,
}

impl Source {
    fn open(path: &Path) -> io::Result<(Self, (u64, u64))> {
        let mut file = open_file(path)?;
        let metadata = file.metadata()?;
        let mut start = Vec::with_capacity(4);
        file.by_ref().take(4).read_to_end(&mut start)?;
        file.rewind()?;
        let source = if is_zstd(&start) {
            Self::Compressed(Box::new(Decompressed { decoder: zstd::Decoder::new(file)?, position: 0 }))
        } else {
            Self::Plain(file)
        };
        Ok((source, (metadata.dev(), metadata.ino())))
    }

    /// How long the file is; of a compressed one, 0: not known.
    fn bytes_total(&self) -> u64 {
        match self {
            Self::Plain(file) => file.metadata().map_or(0, |metadata| metadata.len()),
            Self::Compressed(_) => 0,
        }
    }

    /// Reads from an offset some of what there is and fits; 0 at the end.
    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let read = match self {
            Self::Plain(file) => {
                file.seek(SeekFrom::Start(offset))?;
                read_again(file, buffer)?
            }
            Self::Compressed(stream) => {
                if offset < stream.position {
                    let mut file = stream.decoder.get_ref().get_ref().try_clone()?;
                    file.rewind()?;
                    **stream = Decompressed { decoder: zstd::Decoder::new(file)?, position: 0 };
                }
                let ahead = offset - stream.position;
                stream.position += io::copy(&mut stream.decoder.by_ref().take(ahead), &mut io::sink())?;
                let read = read_again(&mut stream.decoder, buffer)?;
                stream.position += read as u64;
                read
            }
        };
        Ok(read)
    }
}

fn read_again(source: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match source.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

fn io_error(path: &Path, source: io::Error) -> ReadError {
    ReadError::Io { path: path.to_owned(), source }
}
