//! The context, with its displayed process and device.

use ratatui::style::Color;
use std::collections::HashMap;
use std::sync::Arc;

use memlab_trace::{Line, Scope, SegmentMap};

use super::hit_targets::HitTargets;
use super::moment::{ChartWindow, ShownMoment};
use crate::size_units::Units;
use memlab_base::file_names::FileNames;
use memlab_base::filter::Filter;
use memlab_base::query::Cursor;
use memlab_base::theme::Theme;
use memlab_follow::cards::{CardStatus, card_of};
use memlab_follow::offload::mover::MemoryLocation;
use memlab_follow::snapshot::{DeviceSnapshot, ProcessSnapshot, Snapshot};

/// A device of a process, or a process without one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// Index into [`Snapshot::processes`].
    pub process: usize,
    /// Index into [`ProcessSnapshot::devices`]; `None`: the process has no device.
    pub device: Option<usize>,
}

/// State shared by all screens.
pub struct Context {
    /// Snapshot on the screen.
    pub snapshot: Arc<Snapshot>,
    /// True if `snapshot` is kept while the program continues.
    pub paused: bool,
    /// Displayed device: an index into [`Context::targets`].
    pub(super) target: usize,
    /// Moment of tables and categories.
    pub moment: ShownMoment,
    /// True if the user chose the moment.
    pub(super) moment_was_chosen: bool,
    /// Chosen moment, if `moment` is [`ShownMoment::Cursor`].
    pub(super) cursor: Option<Cursor>,
    /// Part of the past in the chart.
    pub window: ChartWindow,
    /// True if each step takes equal room in the chart, however long it took.
    pub chart_by_step: bool,
    /// Format of sizes.
    pub units: Units,
    /// True if the figures of a line include those of called lines.
    pub inclusive: bool,
    /// Scope of the displayed lines, if the user chose one.
    pub scope: Option<Scope>,
    /// Filter of the rows.
    pub filter: Filter,
    /// The filter as typed.
    pub filter_text: String,
    /// True until `snapshot` is of the requested moment; set before drawing.
    pub is_seeking: bool,
    /// Message for the status line, until the next key.
    pub notice: Option<String>,
    /// Colours and glyphs.
    pub theme: Theme,
    /// Targets of the mouse; filled while the screen is drawn.
    pub hit_targets: HitTargets,
    /// Present time: nanoseconds since 1970.
    pub now_unix_ns: u64,
    /// Location of each process's memory, by pid.
    pub memory_locations: HashMap<u32, MemoryLocation>,
}

impl Context {
    /// Makes a context without a snapshot.
    pub fn new(theme: Theme) -> Self {
        Self {
            snapshot: Arc::default(),
            paused: false,
            target: 0,
            moment: ShownMoment::Now,
            moment_was_chosen: false,
            cursor: None,
            window: ChartWindow::Run,
            chart_by_step: false,
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

    /// Formats a size in the user's units.
    pub fn size(&self, bytes: u64) -> String {
        self.units.size(bytes)
    }

    /// Formats the change of a size in the user's units.
    pub fn change(&self, change: i64) -> String {
        self.units.change(change)
    }

    /// All devices of all processes, and the processes without a device.
    pub fn targets(&self) -> Vec<Target> {
        let of_process = |(process, snapshot): (usize, &ProcessSnapshot)| {
            let count = snapshot.devices.len();
            (0..count.max(1)).map(move |device| Target { process, device: Some(device).filter(|_| count > 0) })
        };
        self.snapshot.processes.iter().enumerate().flat_map(of_process).collect()
    }

    /// Number of [`Context::targets`].
    pub fn target_count(&self) -> usize {
        self.snapshot.processes.iter().map(|process| process.devices.len().max(1)).sum()
    }

    /// Takes new data. The displayed device stays the same, even if others now come before it.
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

    /// Index of the displayed target in [`Context::targets`].
    pub fn target(&self) -> usize {
        self.target.min(self.target_count().saturating_sub(1))
    }

    /// Shows one of [`Context::targets`].
    pub fn set_target(&mut self, target: usize) {
        self.target = target;
    }

    /// Shows a device of the displayed process, by its index, if the process has it.
    pub fn show_device(&mut self, index: i32) {
        let Some(place) = self.shown_target() else { return };
        let devices = &self.snapshot.processes[place.process].devices;
        let Some(device) = devices.iter().position(|device| device.totals.index == index) else { return };
        let target = Target { device: Some(device), ..place };
        self.target = self.targets().iter().position(|other| *other == target).unwrap_or(self.target);
    }

    /// Shows the next device, or one further on, and wraps around.
    pub fn turn_target(&mut self, by: usize) {
        let targets = self.target_count();
        if targets > 0 {
            self.target = (self.target() + by) % targets;
        }
    }

    /// The displayed target.
    fn shown_target(&self) -> Option<Target> {
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

    /// The displayed process.
    pub fn process(&self) -> Option<&ProcessSnapshot> {
        self.snapshot.processes.get(self.shown_target()?.process)
    }

    /// Name of the moment whose live bytes are shown beside those of the peak: `then`, `at end` or `now`.
    pub fn live_moment(&self) -> &'static str {
        match self.moment {
            ShownMoment::Cursor => "then",
            _ if self.process().is_some_and(|process| process.state.is_over()) => "at end",
            _ => "now",
        }
    }

    /// Bytes at the displayed moment and at the peak, in words. An end without memory is left out.
    pub fn live_and_peak(&self, live_bytes: u64, bytes_at_peak: u64) -> String {
        let at_peak = format!("at peak {}", self.size(bytes_at_peak));
        match self.live_moment() {
            "at end" if live_bytes == 0 => at_peak,
            then => format!("{then} {}, {at_peak}", self.size(live_bytes)),
        }
    }

    /// The displayed device.
    pub fn device(&self) -> Option<&DeviceSnapshot> {
        let Target { process, device } = self.shown_target()?;
        self.snapshot.processes.get(process)?.devices.get(device?)
    }

    /// State of the displayed device's card; `None`: not known, or the program has ended.
    pub fn card(&self) -> Option<&CardStatus> {
        let process = self.process().filter(|process| !process.state.is_over())?;
        card_of(&self.snapshot.cards, self.device()?.totals.bus_id.as_deref(), &process.header.host)
    }

    /// True if the GPU work of the displayed device was recorded.
    pub fn has_gpu_time(&self) -> bool {
        self.device().is_some_and(|device| device.times.is_some())
    }

    /// Memory map of the displayed device, if the snapshot has it.
    pub fn segment_map(&self) -> Option<&SegmentMap> {
        self.device()?.segments.as_deref()
    }

    /// Short names of the displayed process's source files.
    pub fn file_names(&self) -> Arc<FileNames> {
        self.process().map(|process| Arc::clone(&process.file_names)).unwrap_or_default()
    }

    /// A line for display: `train.py:31`.
    pub fn place(&self, line: &Line) -> String {
        self.process().map(|process| process.file_names.place(line)).unwrap_or_default()
    }

    /// Sum of the lines, and of the layers, of the displayed device.
    pub fn allocated_bytes(&self) -> u64 {
        self.device().map_or(0, |device| match self.moment {
            ShownMoment::Now | ShownMoment::Cursor => device.totals.allocated_bytes,
            ShownMoment::Peak => device.totals.peak_allocated_bytes,
        })
    }

    /// Colour of a share of the allocated bytes.
    pub fn heat(&self, bytes: u64) -> Color {
        self.theme.heat(bytes as f64 / self.allocated_bytes().max(1) as f64)
    }

    /// Text of a line, if the trace has it.
    pub fn recorded_text(&self, line: &Line) -> Option<&Arc<str>> {
        self.process()?.sources.line(&line.file, line.line?)
    }

    /// Sets the filter. A filter that cannot be parsed leaves the previous one unchanged.
    ///
    /// # Errors
    ///
    /// A message for the user about the mistake.
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

    /// Switches library lines on or off.
    pub fn toggle_libraries(&mut self) {
        self.scope = Some(match self.process().map(|process| process.scope) {
            Some(Scope::Libraries) => Scope::Users,
            _ => Scope::Libraries,
        });
    }
}
