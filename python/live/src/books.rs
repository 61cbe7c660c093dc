//! The books: the state of the process, and whatever is fed with the same records.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::{HashMap, HashSet};
use memlab_trace::record::{FORMAT, Record};
use memlab_trace::{Model, decode_line};

use crate::allocator_stats::{AllocatorStats, device_of};
use crate::line_profile::{Function, LineProfile};
use crate::mark::Mark;
use crate::watch::Watch;

/// The lines are of a newer memlab than this.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongVersion(pub u32);

impl fmt::Display for WrongVersion {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "libmemlab.so records format {}, but this package reads {FORMAT}: install the same version of memlab",
            self.0
        )
    }
}

/// A frame as it was first defined: later definitions give cells of notebooks their names.
struct FirstFrame {
    file: Arc<str>,
    line: u32,
    function: Arc<str>,
}

/// The live books.
#[derive(Default)]
pub struct Books {
    model: Model,
    stats: HashMap<i32, AllocatorStats>,
    frames: HashMap<u32, FirstFrame>,
    texts: HashSet<Arc<str>>,
    marks: std::collections::VecDeque<Mark>,
    watches: HashMap<u64, Watch>,
    profiles: HashMap<u64, LineProfile>,
    version_error: Option<WrongVersion>,
}

impl Books {
    /// The state now.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Why the lines could not be read, if they could not.
    pub fn error(&self) -> Option<&WrongVersion> {
        self.version_error.as_ref()
    }

    /// Begins the peaks of a device (`None`: of all) again.
    pub fn reset_peaks(&mut self, device: Option<i32>) {
        self.model.reset_peaks(device);
    }

    /// Takes whole lines of the recording, the first of them at `position`.
    pub fn take(&mut self, lines: &[u8], position: u64) {
        let mut at = 0;
        while let Some(length) = memchr::memchr(b'\n', &lines[at..]) {
            self.pass_marks(position + at as u64);
            if let Ok(record) = decode_line(&lines[at..at + length]) {
                self.record(record);
            }
            at += length + 1;
        }
    }

    /// All lines before `position` have been taken: moments up to there have passed.
    pub fn pass_marks(&mut self, position: u64) {
        while self.marks.front().is_some_and(|mark| mark.position <= position) {
            let Some(mark) = self.marks.pop_front() else { return };
            if let Some(profile) = self.profiles.get_mut(&mark.profile) {
                profile.moment(mark.moment, &self.stats);
            }
        }
    }

    /// Adds a moment; they come in the order of their positions.
    pub fn mark(&mut self, mark: Mark) {
        self.marks.push_back(mark);
    }

    /// How many moments wait for the lines before them.
    pub fn waiting_marks(&self) -> usize {
        self.marks.len()
    }

    /// The recording begins again: with another process, or because lines were missed. What is read now holds the whole
    /// state.
    pub fn restart(&mut self) {
        self.model = Model::new();
        self.stats.clear();
        for watch in self.watches.values_mut().filter(|watch| !watch.is_over) {
            watch.has_gap = true;
            watch.is_over = true;
            watch.ended = Some(watch.model.time());
        }
    }

    fn record(&mut self, record: Record<'_>) {
        match &record {
            Record::Header(header) if header.memlab > FORMAT => self.version_error = Some(WrongVersion(header.memlab)),
            Record::Frame(frame) => {
                let (file, function) = (self.text(&frame.file), self.text(&frame.function));
                let line = frame.line.unwrap_or(0);
                let first = self.frames.entry(frame.frame).or_insert_with(|| FirstFrame { file, line, function });
                for profile in self.profiles.values_mut() {
                    profile.define(frame.frame, &first.file, first.line, &first.function);
                }
            }
            _ => {}
        }
        for watch in self.watches.values_mut() {
            watch.has_gap |= matches!(record, Record::Lost(_)) && !watch.is_over;
            watch.take(&record);
        }
        let Some(device) = device_of(&record) else {
            let is_state = matches!(record, Record::Keyframe(_));
            self.model.apply(record);
            if is_state {
                self.stats.clear();
            }
            return;
        };
        self.model.apply(record.clone());
        let model = &self.model;
        let stats = match self.stats.entry(device) {
            hashbrown::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            hashbrown::hash_map::Entry::Vacant(entry) => {
                // The first record of the device, or the first after a state: the state has this one in it already.
                let stats = entry.insert(AllocatorStats::of(model, device));
                for profile in self.profiles.values_mut() {
                    profile.take(&record, device, stats, true, model);
                }
                return;
            }
        };
        let rose = stats.take(&record, model);
        for profile in self.profiles.values_mut() {
            profile.take(&record, device, stats, rose, model);
        }
    }

    /// The text, shared with earlier equal ones.
    fn text(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.texts.get(text) {
            return known.clone();
        }
        let text: Arc<str> = text.into();
        self.texts.insert(text.clone());
        text
    }

    /// An id that no other books of the process give: who asks with one of earlier books finds nothing.
    fn next_id() -> u64 {
        static LAST: AtomicU64 = AtomicU64::new(0);
        LAST.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Begins to watch a block of code at this time of day; returns the id of the watch.
    pub fn begin_watch(&mut self, unix_ns: u64) -> u64 {
        let id = Self::next_id();
        self.watches.insert(id, Watch::begin(&self.model, self.time_at(unix_ns)));
        id
    }

    /// The time of the recording at a time of day: not before its last event.
    pub fn time_at(&self, unix_ns: u64) -> u64 {
        let start = self.model.header().map_or(unix_ns, |header| header.start_unix_ns);
        unix_ns.saturating_sub(start).max(self.model.time())
    }

    /// A watch.
    pub fn watch(&self, id: u64) -> Option<&Watch> {
        self.watches.get(&id)
    }

    /// The block of a watch has ended, at this time of day.
    pub fn end_watch(&mut self, id: u64, unix_ns: u64) {
        let now = self.time_at(unix_ns);
        if let Some(watch) = self.watches.get_mut(&id) {
            watch.is_over = true;
            watch.ended = Some(now);
        }
    }

    /// Forgets a watch.
    pub fn drop_watch(&mut self, id: u64) {
        self.watches.remove(&id);
    }

    /// Adds an empty line profile; returns its id.
    pub fn add_profile(&mut self) -> u64 {
        let id = Self::next_id();
        self.profiles.insert(id, LineProfile::default());
        id
    }

    /// A line profile.
    pub fn profile(&self, id: u64) -> Option<&LineProfile> {
        self.profiles.get(&id)
    }

    /// A line profile, to clear it.
    pub fn profile_mut(&mut self, id: u64) -> Option<&mut LineProfile> {
        self.profiles.get_mut(&id)
    }

    /// Adds a function to a profile; returns its index there.
    pub fn add_function(&mut self, profile: u64, function: Function) -> Option<u32> {
        let known = self.frames.iter().map(|(id, frame)| (*id, &frame.file, frame.line, &frame.function));
        Some(self.profiles.get_mut(&profile)?.add(function, known))
    }

    /// Forgets a profile.
    pub fn drop_profile(&mut self, id: u64) {
        self.profiles.remove(&id);
    }
}
