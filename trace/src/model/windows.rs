//! Growth that a release ended: memory that grows within each epoch, and is freed at its end.
//!
//! A window begins at the step after a release. It ends with the next release, when more than half of its growth is gone. The
//! window that grew most is kept.

use serde::{Deserialize, Serialize};

use super::ledger::Ledger;
use super::line_book::{LineBook, LineMove};
use super::scope::Scope;
use super::snapshots::{Cells, Snapshot, SteadyLines, steady_lines};

/// Maximum number of snapshots in a window.
const MAX_SNAPSHOTS: usize = 32;

/// Minimum number of snapshots from which growth can be told.
const MIN_SNAPSHOTS: usize = 5;

/// Memory of lines from one release to the next.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Window {
    stride: u64,
    snapshots: Vec<Snapshot>,
    before: Cells,
    after: Cells,
    /// Fewest and most bytes of PyTorch's blocks at these steps.
    least: u64,
    most: u64,
}

impl Window {
    fn growth(&self) -> u64 {
        self.most.saturating_sub(self.least) // A keyframe may contain anything.
    }

    fn is_released_at(&self, allocated: u64) -> bool {
        !self.snapshots.is_empty() && allocated < self.least.saturating_add(self.growth() / 2)
    }

    fn note(&mut self, ledger: &Ledger, ended: u64, allocated: u64) {
        let is_first = self.snapshots.is_empty();
        if is_first {
            *self = Self { stride: 1, least: allocated, most: allocated, ..Self::default() };
        }
        (self.least, self.most) = (self.least.min(allocated), self.most.max(allocated));
        if !ended.is_multiple_of(self.stride) {
            return;
        }
        self.snapshots.push(Snapshot::of(ledger.book(Scope::Users), ended));
        self.after = Cells::of(ledger, ended);
        if is_first {
            self.before.clone_from(&self.after);
        }
        if self.snapshots.len() > MAX_SNAPSHOTS {
            self.stride = self.stride.saturating_mul(2);
            let stride = self.stride;
            self.snapshots.retain(|snapshot| snapshot.ended.is_multiple_of(stride));
        }
    }

    /// Returns the first and the last step of the window; `None`: they are no span.
    pub(crate) fn steps(&self) -> Option<(u64, u64)> {
        Cells::span(&self.before, &self.after)
    }

    /// Returns the lines that grew steadily until the release.
    pub(crate) fn steady_lines(&self, ledger: &Ledger) -> SteadyLines {
        if self.snapshots.len() < MIN_SNAPSHOTS {
            return SteadyLines::new();
        }
        steady_lines(ledger.book(Scope::Users), self.snapshots.iter(), |_, _| true)
    }

    /// Returns the bytes of cells at the first and the last step.
    pub(crate) fn by_cell(&self) -> hashbrown::HashMap<u32, (u64, u64)> {
        Cells::compared(&self.before, &self.after)
    }

    fn with_current_lines(&self, book: &LineBook) -> Self {
        let snapshots = self.snapshots.iter().map(|snapshot| snapshot.with_current_lines(book)).collect();
        Self { snapshots, ..self.clone() }
    }
}

/// The current window, and the one that grew most of those that a release ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Windows {
    now: Window,
    pub(crate) largest: Window,
    /// Number of windows that grew at least half as much as the largest.
    pub(crate) times: u64,
    #[serde(default)]
    pub(crate) after_steps: AfterSteps,
}

impl Windows {
    /// Handles the end of a step, or an iteration, with these bytes in PyTorch's blocks.
    pub(crate) fn note(&mut self, ledger: &Ledger, ended: u64, allocated: u64) {
        if self.now.is_released_at(allocated) {
            self.close();
        }
        self.now.note(ledger, ended, allocated);
    }

    fn close(&mut self) {
        let window = std::mem::take(&mut self.now);
        if window.snapshots.len() < MIN_SNAPSHOTS {
            return;
        }
        let (grew, most) = (window.growth(), self.largest.growth());
        if grew / 2 > most {
            self.times = 0;
        }
        if grew >= most / 2 {
            self.times = self.times.saturating_add(1);
        }
        if grew > most {
            self.largest = window;
        }
    }

    /// Moves bytes that are counted at other lines from now on.
    pub(crate) fn moved(&mut self, ledger: &Ledger, moves: &[LineMove]) {
        *self = self.with_current_lines(ledger);
        for window in [&mut self.now, &mut self.largest, &mut self.after_steps.window] {
            window.snapshots.iter_mut().for_each(|snapshot| snapshot.moved(moves));
        }
    }

    /// For a keyframe.
    pub(crate) fn with_current_lines(&self, ledger: &Ledger) -> Self {
        let book = ledger.book(Scope::Users);
        Self {
            now: self.now.with_current_lines(book),
            largest: self.largest.with_current_lines(book),
            times: self.times,
            after_steps: AfterSteps {
                window: self.after_steps.window.with_current_lines(book),
                ..self.after_steps.clone()
            },
        }
    }
}

/// Iterations after the last optimizer step, as in an evaluation that adapts copies of the weights.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct AfterSteps {
    /// Iterations since the last step.
    count: u64,
    /// The most iterations between two steps: micro-batches of one step are none of these.
    pub(crate) usual: u64,
    /// The latest such iterations.
    pub(crate) window: Window,
}

/// Minimum number of iterations after the last step.
const MIN_ITERATIONS: u64 = 8;

impl AfterSteps {
    pub(crate) fn end_step(&mut self) {
        if !self.is_unusual() {
            self.usual = self.usual.max(self.count);
        }
        self.count = 0;
    }

    /// Handles an iteration that begins with these bytes in PyTorch's blocks.
    pub(crate) fn note(&mut self, ledger: &Ledger, allocated: u64) {
        let was_unusual = self.is_unusual();
        self.count = self.count.saturating_add(1);
        if self.is_unusual() {
            if !was_unusual {
                self.window = Window::default();
            }
            self.window.note(ledger, self.count, allocated);
        }
    }

    fn is_unusual(&self) -> bool {
        self.count >= MIN_ITERATIONS.max(self.usual.saturating_mul(2))
    }
}
