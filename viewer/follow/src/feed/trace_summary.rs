//! A trace with only a summary: a rank that nobody views.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use memlab_job::RankSummary;
use memlab_trace::record::Header;
use memlab_trace::{ReadError, SeekTarget, read_header_at};

use super::figures::FollowedFigures;
use super::readers::ReadTrace;
use super::writer::WriterState;
use crate::snapshot::{ProcessSnapshot, ProcessState};
use memlab_base::query::Cursor;

/// Interval between checks of the writer, long because a job has many ranks.
const WRITER_CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// Rereads a trace to classify its memory once its peak has grown by 1/N.
const MIN_RISE_DIVISOR: u64 = 64;

/// A trace and its summary.
pub struct TraceSummary {
    path: PathBuf,
    header: Header,
    /// `None`: not read yet.
    summary: Option<RankSummary>,
    /// Live figures while the trace grows.
    followed: Option<FollowedFigures>,
    state: ProcessState,
    writer: WriterState,
    failure: Option<String>,
    /// Peak and number of out-of-memory errors at the last full read.
    read_at: (u64, u64),
    /// True while a reader reads the trace.
    is_ordered: bool,
    /// True if the process ended after the last full read.
    ended_since: bool,
    checked: Option<Instant>,
}

impl TraceSummary {
    /// Opens a trace and reads only its first line.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened or is not a trace.
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        let metadata = std::fs::metadata(path).map_err(|source| ReadError::Io { path: path.to_owned(), source })?;
        let total = metadata.len();
        let header = read_header_at(path).ok_or_else(|| match total {
            0 => ReadError::Empty { path: path.to_owned() },
            _ => ReadError::NotATrace { path: path.to_owned() },
        })?;
        Ok(Self {
            path: path.to_owned(),
            header,
            summary: None,
            followed: None,
            state: ProcessState::Opening { read: 0, total },
            writer: WriterState::default(),
            failure: None,
            read_at: (0, 0),
            is_ordered: false,
            ended_since: false,
            checked: None,
        })
    }

    /// Path of the trace.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its first line.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The summary, once read.
    pub fn summary(&self) -> Option<&RankSummary> {
        self.summary.as_ref()
    }

    /// Returns true if the trace is complete.
    pub fn is_over(&self) -> bool {
        self.state.is_over()
    }

    /// Returns true if nothing is left to read.
    pub fn is_settled(&self) -> bool {
        self.is_over() && !self.is_ordered && !self.is_outdated()
    }

    /// Sets the summary from a whole model that was read elsewhere.
    pub fn set_summary(&mut self, summary: RankSummary, state: ProcessState) {
        self.read_at = (peak(&summary), summary.oom_count);
        (self.summary, self.state, self.followed) = (Some(summary), state, None);
        self.ended_since = false;
    }

    /// Stops following the figures, because a whole model now follows the trace.
    pub fn leave_following(&mut self) {
        self.followed = None;
    }

    /// Returns true if the trace was never read, or is no longer followed.
    pub fn is_unread(&self) -> bool {
        !self.is_ordered
            && self.failure.is_none()
            && (self.summary.is_none() || !self.is_over() && self.followed.is_none())
    }

    /// Returns true if the trace must be reread to classify its memory.
    pub fn is_outdated(&self) -> bool {
        let Some(summary) = self.summary.as_ref().filter(|_| !self.is_ordered && self.failure.is_none()) else {
            return false;
        };
        let (read_peak, read_ooms) = self.read_at;
        self.ended_since
            || summary.oom_count != read_ooms
            || peak(summary) > read_peak.saturating_add(read_peak / MIN_RISE_DIVISOR)
    }

    /// Returns true if the figures are followed.
    pub fn is_followed(&self) -> bool {
        self.followed.is_some()
    }

    /// Marks the trace as being read.
    pub fn set_ordered(&mut self) {
        self.is_ordered = true;
    }

    /// Takes the result of a read.
    pub fn take(&mut self, read: ReadTrace) {
        self.is_ordered = false;
        match read.summary {
            Ok(summary) => {
                self.read_at = (peak(&summary), summary.oom_count);
                self.ended_since = false;
                self.summary = Some(summary);
                self.state = read.state;
                self.followed = read.followed.or(self.followed.take()).filter(|_| !read.state.is_over());
                self.update();
            }
            Err(error) => self.fail(&error),
        }
    }

    fn fail(&mut self, error: &ReadError) {
        self.failure = Some(error.to_string());
        (self.state, self.followed) = (ProcessState::Unreadable, None);
    }

    fn update(&mut self) {
        if let (Some(summary), Some(followed)) = (&mut self.summary, &self.followed) {
            followed.update(summary);
        }
    }

    /// Reads new events of a growing trace.
    ///
    /// Returns true if anything changed.
    pub fn poll(&mut self) -> bool {
        let Some(followed) = &mut self.followed else { return false };
        let is_new = match followed.poll() {
            Ok(is_new) => is_new,
            Err(error) => {
                self.fail(&error);
                return true;
            }
        };
        if is_new {
            self.writer.on_growth();
            self.update();
        }
        let before = self.state;
        let end = self.summary.as_ref().and_then(|summary| summary.end);
        match end {
            Some(end) => self.state = ProcessState::Ended { code: end.code, signal: end.signal },
            None if self.checked.is_none_or(|checked| checked.elapsed() >= WRITER_CHECK_INTERVAL) => {
                self.checked = Some(Instant::now());
                self.state = self.writer.check(Some(&self.header), &self.path, false);
            }
            None => {}
        }
        if self.state.is_over()
            && let Some(mut followed) = self.followed.take()
        {
            // Also read the lines after a hole that the writer left.
            followed.set_writer_dead();
            let _ = followed.poll();
            if let Some(summary) = &mut self.summary {
                followed.update(summary);
            }
            self.ended_since = true;
        }
        is_new || before != self.state
    }

    /// Returns the snapshot; at a chosen moment, as precisely as the stored memory over time allows.
    pub fn snapshot(&self, cursor: Option<&Cursor>) -> ProcessSnapshot {
        let mut process = match &self.summary {
            Some(summary) => ProcessSnapshot::of_summary(summary, self.state),
            None => ProcessSnapshot {
                path: self.path.clone(),
                header: self.header.clone(),
                state: self.state,
                is_summary: true,
                ..ProcessSnapshot::default()
            },
        };
        process.failure.clone_from(&self.failure);
        if let Some(cursor) = cursor {
            let time = match cursor.at {
                SeekTarget::Time(time) if cursor.trace == self.path => time,
                _ => cursor.unix_ns.saturating_sub(self.header.start_unix_ns),
            };
            process.show_about(time, self.summary.as_ref());
        }
        process
    }
}

/// Largest peak of allocated bytes of any device.
fn peak(summary: &RankSummary) -> u64 {
    summary.devices.iter().map(|device| device.view.peak_allocated_bytes).max().unwrap_or(0)
}
