//! The context, and the process and device it shows.

use std::collections::HashMap;
use std::sync::Arc;

use memlab_trace::{Line, Scope, SegmentMap};

use super::hit_targets::HitTargets;
use super::moment::{ChartWindow, ShownMoment};
use crate::size_units::Units;
use memlab_base::filter::Filter;
use memlab_base::query::Cursor;
use memlab_base::theme::Theme;
use memlab_follow::offload::mover::MemoryLocation;
use memlab_follow::snapshot::{DeviceSnapshot, ProcessSnapshot, Snapshot};

/// A device of a process, or a process without one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// An index into [`Snapshot::processes`].
    pub process: usize,
    /// An index into [`ProcessSnapshot::devices`]; `None`: it has none.
    pub device: Option<usize>,
}

/// What all screens share.
pub struct Context {
    /// What is on the screen.
    pub snapshot: Arc<Snapshot>,
    /// Whether `snapshot` is kept while the program continues.
    pub paused: bool,
    /// The device shown: an index into [`Context::targets`].
    pub(super) target: usize,
    /// The moment of tables and categories.
    pub moment: ShownMoment,
    /// Whether the user chose it.
    pub(super) moment_was_chosen: bool,
    /// The chosen moment, where `moment` is [`ShownMoment::Cursor`].
    pub(super) cursor: Option<Cursor>,
    /// How much of the past the chart shows.
    pub window: ChartWindow,
    /// How sizes are written.
    pub units: Units,
    /// Whether what a line or layer holds includes what those it calls hold.
    pub inclusive: bool,
    /// Whose lines are shown, if the user chose.
    pub scope: Option<Scope>,
    /// Which rows are shown.
    pub filter: Filter,
    /// The filter as it was typed.
    pub filter_text: String,
    /// Whether `snapshot` is not yet of the moment asked for; set before drawing.
    pub is_seeking: bool,
    /// A message for the status line, until the next key.
    pub notice: Option<String>,
    /// Colours and glyphs.
    pub theme: Theme,
    /// What the mouse hits where; filled as the screen is drawn.
    pub hit_targets: HitTargets,
    /// The present: nanoseconds since 1970.
    pub now_unix_ns: u64,
    /// Where the memory of each process is, by its pid.
    pub memory_locations: HashMap<u32, MemoryLocation>,
}

impl Context {
    /// A context without a snapshot.
    pub fn new(theme: Theme) -> Self {
        Self {
            snapshot: Arc::default(),
            paused: false,
            target: 0,
            moment: ShownMoment::Now,
            moment_was_chosen: false,
            cursor: None,
            window: ChartWindow::Run,
            units: Units::Auto,
            inclusive: false,
            scope: None,
            filter: Filter::default(),
            filter_text: String::new(),
            is_seeking: false,
            notice: None,
            theme,
            hit_targets: HitTargets::default(),
            now_unix_ns: 0,
            memory_locations: HashMap::new(),
        }
    }

    /// A size in the units that the user chose.
    pub fn size(&self, bytes: u64) -> String {
        self.units.size(bytes)
    }

    /// By how much a size changed, in these units.
    pub fn change(&self, change: i64) -> String {
        self.units.change(change)
    }

    /// All devices of all processes, and the processes without one.
    pub fn targets(&self) -> Vec<Target> {
        let of_process = |(process, snapshot): (usize, &ProcessSnapshot)| {
            let count = snapshot.devices.len();
            (0..count.max(1)).map(move |device| Target { process, device: Some(device).filter(|_| count > 0) })
        };
        self.snapshot.processes.iter().enumerate().flat_map(of_process).collect()
    }

    /// How many [`Context::targets`] there are.
    pub fn target_count(&self) -> usize {
        self.snapshot.processes.iter().map(|process| process.devices.len().max(1)).sum()
    }

    /// Takes over new data. The device shown stays the one shown, also where others come before it now.
    pub fn set_snapshot(&mut self, snapshot: Arc<Snapshot>) {
        let shown = self.process().map(|process| (process.path.clone(), process.header.pid));
        let device = self.device().map(|device| device.totals.index);
        self.snapshot = snapshot;
        let is_same = |process: &ProcessSnapshot| {
            shown.as_ref().is_some_and(|(path, pid)| (path, pid) == (&process.path, &process.header.pid))
        };
        let Some(process) = self.snapshot.processes.iter().position(is_same) else { return };
        let before: usize = self.snapshot.processes[..process].iter().map(|process| process.devices.len().max(1)).sum();
        let devices = &self.snapshot.processes[process].devices;
        self.target = before + devices.iter().position(|found| Some(found.totals.index) == device).unwrap_or(0);
    }

    /// Which of [`Context::targets`] is shown.
    pub fn target(&self) -> usize {
        self.target.min(self.target_count().saturating_sub(1))
    }

    /// Shows one of [`Context::targets`].
    pub fn set_target(&mut self, target: usize) {
        self.target = target;
    }

    /// Shows the next device, or one further on; after the last one the first.
    pub fn turn_target(&mut self, by: usize) {
        let targets = self.target_count();
        if targets > 0 {
            self.target = (self.target() + by) % targets;
        }
    }

    /// The target shown.
    fn place(&self) -> Option<Target> {
        let mut left = self.target();
        for (process, snapshot) in self.snapshot.processes.iter().enumerate() {
            let count = snapshot.devices.len();
            if left < count.max(1) {
                return Some(Target { process, device: Some(left).filter(|_| count > 0) });
            }
            left -= count.max(1);
        }
        None
    }

    /// The process shown.
    pub fn process(&self) -> Option<&ProcessSnapshot> {
        self.snapshot.processes.get(self.place()?.process)
    }

    /// The device shown.
    pub fn device(&self) -> Option<&DeviceSnapshot> {
        let Target { process, device } = self.place()?;
        self.snapshot.processes.get(process)?.devices.get(device?)
    }

    /// Whether it was recorded what ran on the device shown.
    pub fn has_gpu_time(&self) -> bool {
        self.device().is_some_and(|device| device.times.is_some())
    }

    /// The memory map of the device shown, if the snapshot has it.
    pub fn segment_map(&self) -> Option<&SegmentMap> {
        self.device()?.segments.as_deref()
    }

    /// The working directory of the process shown, from which paths are shortened.
    pub fn directory(&self) -> &str {
        self.process().map_or("", |process| &process.header.directory)
    }

    /// The sum of the lines, and of the layers, of the device shown.
    pub fn allocated_bytes(&self) -> u64 {
        self.device().map_or(0, |device| match self.moment {
            ShownMoment::Now | ShownMoment::Cursor => device.totals.allocated_bytes,
            ShownMoment::Peak => device.totals.peak_allocated_bytes,
        })
    }

    /// The text of a line, if the trace has it.
    pub fn recorded_text(&self, line: &Line) -> Option<&Arc<str>> {
        self.process()?.sources.line(&line.file, line.line?)
    }

    /// Sets the filter.
    ///
    /// # Errors
    ///
    /// What is wrong with it, for the user, if it cannot be parsed; the filter then stays as it was.
    pub fn set_filter(&mut self, text: &str) -> Result<(), String> {
        self.filter = Filter::parse(text)?;
        self.filter_text = text.to_owned();
        Ok(())
    }

    /// Removes the filter.
    pub fn clear_filter(&mut self) {
        self.filter = Filter::default();
        self.filter_text.clear();
    }

    /// Shows the lines of libraries too, or the user's alone.
    pub fn toggle_libraries(&mut self) {
        self.scope = Some(match self.process().map(|process| process.scope) {
            Some(Scope::Libraries) => Scope::Users,
            _ => Scope::Libraries,
        });
    }
}
