//! A process's memory figures without attribution: a model small enough to keep for each rank of a large job.

use std::ops::ControlFlow;
use std::path::Path;

use memlab_job::RankSummary;
use memlab_trace::record::{Alloc, DriverAlloc, Oom};
use memlab_trace::{Follower, Model, ReadError, Record, Sink};

/// Follows a trace for its figures only.
pub struct FollowedFigures {
    follower: Follower,
    figures: Figures,
    /// Trace time at which the history was last shortened.
    shortened_at: u64,
}

/// The most reads in one poll, so that other traces get their turn.
const MAX_POLL_READS: usize = 4;

/// Number of times the history is halved after the first read: from thousands of points to hundreds.
const HISTORY_HALVINGS: usize = 3;

impl FollowedFigures {
    /// Reads a trace up to now.
    ///
    /// Stops early once `stop` returns true, and keeps what it has read.
    ///
    /// # Errors
    ///
    /// If the trace cannot be read.
    pub fn open(path: &Path, stop: &dyn Fn() -> bool) -> Result<Self, ReadError> {
        let mut follower = Follower::open(path)?;
        let mut figures = Figures::default();
        while follower.poll(&mut figures)?.more && !stop() {}
        let mut followed = Self { follower, figures, shortened_at: 0 };
        for _ in 0..HISTORY_HALVINGS {
            followed.shorten();
        }
        Ok(followed)
    }

    /// Reads new events.
    ///
    /// Returns true if any were read.
    ///
    /// # Errors
    ///
    /// If the trace can no longer be read.
    pub fn poll(&mut self) -> Result<bool, ReadError> {
        let mut is_new = false;
        for _ in 0..MAX_POLL_READS {
            let polled = self.follower.poll(&mut self.figures)?;
            is_new |= polled.events > 0 || polled.restarted;
            if !polled.more {
                break;
            }
        }
        if self.figures.model.time() / 2 > self.shortened_at {
            self.shorten();
        }
        Ok(is_new)
    }

    /// Copies the figures into a summary.
    pub fn update(&self, summary: &mut RankSummary) {
        let Figures { model, passed_over } = &self.figures;
        summary.update(model, model.events() + passed_over, self.follower.skipped().count);
    }

    /// Marks the writer as dead: from now on, reading skips the holes that it left.
    pub fn set_writer_dead(&mut self) {
        self.follower.set_writer_dead();
    }

    fn shorten(&mut self) {
        self.figures.model.shorten_history();
        self.shortened_at = self.figures.model.time();
    }
}

/// A model that receives memory events, but no stacks, layers and tags.
#[derive(Default)]
struct Figures {
    model: Model,
    /// Number of skipped events.
    passed_over: u64,
}

impl Sink for Figures {
    #[inline]
    fn take(&mut self, record: Record<'_>) -> ControlFlow<()> {
        match record {
            Record::Alloc(event) => self.model.apply(Record::Alloc(Alloc { stack: 0, layer: 0, ..event })),
            Record::DriverAlloc(event) => {
                self.model.apply(Record::DriverAlloc(DriverAlloc { stack: 0, layer: 0, ..event }))
            }
            Record::Oom(event) => self.model.apply(Record::Oom(Oom { stack: 0, layer: 0, ..event })),
            Record::Frame(_)
            | Record::Source(_)
            | Record::Stack(_)
            | Record::Layer(_)
            | Record::Range(_)
            | Record::Kernel(_)
            | Record::Trained(_)
            | Record::Tag(_)
            | Record::ReadBack(_)
            | Record::Work(_)
            | Record::StepWork(_)
            | Record::StepWait(_)
            | Record::Busy(_)
            | Record::Ran(_)
            | Record::InRange(_) => self.passed_over += u64::from(record.time().is_some()),
            record => self.model.apply(record),
        }
        ControlFlow::Continue(())
    }

    fn model(&self) -> &Model {
        &self.model
    }

    fn restart(&mut self) {
        *self = Self::default();
    }
}
