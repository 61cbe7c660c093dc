//! The live books: the state of the process, and its watches and line profiles, all fed with the same records.

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

/// Error for lines that a newer memlab wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongVersion(pub u32);

impl fmt::Display for WrongVersion {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "libmemlab.so records format {}, and this package reads {FORMAT}: install the same memlab",
            self.0
        )
    }
}

/// A frame as it was first defined.
///
/// Later definitions name the cells of notebooks.
struct FirstFrame {
    file: Arc<str>,
    line: u32,
    function: Arc<str>,
}

/// The live books of a process.
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
    /// Current state.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Version error, if the lines could not be read.
    pub fn error(&self) -> Option<&WrongVersion> {
        self.version_error.as_ref()
    }

    /// Resets the peaks of a device, or of all devices with `None`.
    pub fn reset_peaks(&mut self, device: Option<i32>) {
        self.model.reset_peaks(device);
    }

    /// Reads whole lines of the recording.
    ///
    /// The first line is at `position`.
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

    /// Passes all marks up to `position`, because the lines before it have been read.
    pub fn pass_marks(&mut self, position: u64) {
        while self.marks.front().is_some_and(|mark| mark.position <= position) {
            let Some(mark) = self.marks.pop_front() else { return };
            if let Some(profile) = self.profiles.get_mut(&mark.profile) {
                profile.moment(mark.moment, &self.stats);
            }
        }
    }

    /// Adds a mark.
    ///
    /// Marks arrive in the order of their positions.
    pub fn mark(&mut self, mark: Mark) {
        self.marks.push_back(mark);
    }

    /// Number of marks that wait for the lines before them.
    pub fn waiting_marks(&self) -> usize {
        self.marks.len()
    }

    /// Starts the recording again, with another process or after missed lines.
    ///
    /// The next lines contain the whole state.
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
                // The first record of the device, or the first one after a state. The state already includes this record.
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

    /// Returns the text, shared with earlier equal ones.
    fn text(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.texts.get(text) {
            return known.clone();
        }
        let text: Arc<str> = text.into();
        self.texts.insert(text.clone());
        text
    }

    /// Returns an id that no other books of the process return.
    ///
    /// A lookup with an id of earlier books finds nothing.
    fn next_id() -> u64 {
        static LAST: AtomicU64 = AtomicU64::new(0);
        LAST.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Starts watching a block of code at this time of day.
    ///
    /// Returns the id of the watch.
    pub fn begin_watch(&mut self, unix_ns: u64) -> u64 {
        let id = Self::next_id();
        self.watches.insert(id, Watch::begin(&self.model, self.time_at(unix_ns)));
        id
    }

    /// Converts a time of day to a time of the recording, no earlier than the last event.
    pub fn time_at(&self, unix_ns: u64) -> u64 {
        let start = self.model.header().map_or(unix_ns, |header| header.start_unix_ns);
        unix_ns.saturating_sub(start).max(self.model.time())
    }

    /// Returns a watch.
    pub fn watch(&self, id: u64) -> Option<&Watch> {
        self.watches.get(&id)
    }

    /// Ends the block of a watch at this time of day.
    pub fn end_watch(&mut self, id: u64, unix_ns: u64) {
        let now = self.time_at(unix_ns);
        if let Some(watch) = self.watches.get_mut(&id) {
            watch.is_over = true;
            watch.ended = Some(now);
        }
    }

    /// Removes a watch.
    pub fn drop_watch(&mut self, id: u64) {
        self.watches.remove(&id);
    }

    /// Adds an empty line profile.
    ///
    /// Returns its id.
    pub fn add_profile(&mut self) -> u64 {
        let id = Self::next_id();
        self.profiles.insert(id, LineProfile::default());
        id
    }

    /// Returns a line profile.
    pub fn profile(&self, id: u64) -> Option<&LineProfile> {
        self.profiles.get(&id)
    }

    /// Returns a line profile that can be cleared.
    pub fn profile_mut(&mut self, id: u64) -> Option<&mut LineProfile> {
        self.profiles.get_mut(&id)
    }

    /// Adds a function to a profile.
    ///
    /// Returns its index there.
    pub fn add_function(&mut self, profile: u64, function: Function) -> Option<u32> {
        let known = self.frames.iter().map(|(id, frame)| (*id, &frame.file, frame.line, &frame.function));
        Some(self.profiles.get_mut(&profile)?.add(function, known))
    }

    /// Removes a profile.
    pub fn drop_profile(&mut self, id: u64) {
        self.profiles.remove(&id);
    }
}
