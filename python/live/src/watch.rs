//! A watched block of code: a second state, whose peaks start with the block.

use std::cmp::Reverse;
use std::sync::Arc;

use hashbrown::HashMap;
use memlab_trace::{LayerView, Line, LineView, Model, Record};

/// Memory of a line in a watched block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchedLine {
    /// Bytes that it holds at the end of the block, and held at its peak.
    pub now: LineView,
    /// Bytes that it held when the block began.
    pub at_start: u64,
    /// Bytes that it allocated in the block.
    pub allocated: u64,
    /// Allocated bytes that are live at the end of the block.
    pub kept: u64,
}

/// A watched block of code.
pub struct Watch {
    /// State, with peaks since the block began.
    pub model: Model,
    at_start: HashMap<i32, Start>,
    started: u64,
    /// Start of the block, in nanoseconds since the start of the recording.
    pub began: u64,
    /// End of the block; `None` while it runs.
    pub ended: Option<u64>,
    /// True if the block has ended.
    ///
    /// The state is then frozen, except for names that arrive later.
    pub is_over: bool,
    /// True if records were missed during the block.
    pub has_gap: bool,
}

/// State of a device when the block began.
struct Start {
    allocated: u64,
    lines: Vec<LineView>,
    layers: Vec<LayerView>,
}

impl Watch {
    /// Starts a block at `now`, which may be long after the last event.
    pub(crate) fn begin(model: &Model, now: u64) -> Self {
        let mut model = model.clone();
        model.reset_peaks(None);
        model.restart_timelines(now);
        let start = |device: i32| Start {
            allocated: model.totals(device).allocated_bytes,
            lines: model.lines(device),
            layers: model.layers(device),
        };
        let at_start = model.devices().iter().map(|device| (device.index, start(device.index))).collect();
        let started = model.time();
        Self { at_start, started, began: now, ended: None, model, is_over: false, has_gap: false }
    }

    /// Bytes allocated on a device when the block began.
    pub fn allocated_at_start(&self, device: i32) -> u64 {
        self.at_start.get(&device).map_or(0, |start| start.allocated)
    }

    /// Returns the memory of every line on a device, the largest at the peak first.
    ///
    /// The lines sum to the allocated bytes at the start, at the peak and at the end.
    pub fn lines(&self, device: i32) -> Vec<WatchedLine> {
        let mut kept: HashMap<Option<Arc<Line>>, u64> = HashMap::new();
        for block in self.model.blocks(device).iter().filter(|block| block.time > self.started) {
            *kept.entry(self.model.line_of(block.stack)).or_default() += block.bytes;
        }
        let before = self.at_start.get(&device).map(|start| start.lines.as_slice()).unwrap_or_default();
        let mut before: HashMap<&Option<Arc<Line>>, &LineView> = before.iter().map(|view| (&view.line, view)).collect();
        let mut lines: Vec<WatchedLine> = Vec::new();
        for now in self.model.lines(device) {
            let start = before.remove(&now.line);
            let at_start = start.map_or(0, |start| start.live_bytes);
            let allocated = now.allocated_bytes.saturating_sub(start.map_or(0, |start| start.allocated_bytes));
            let kept = kept.get(&now.line).copied().unwrap_or(0);
            if at_start + allocated + now.live_bytes + now.live_bytes_at_peak > 0 {
                lines.push(WatchedLine { now, at_start, allocated, kept });
            }
        }
        lines.sort_by_key(|line| Reverse((line.now.live_bytes_at_peak, line.allocated)));
        lines
    }

    /// Returns the bytes of every layer on a device at the end and at the peak, with its bytes at the start.
    ///
    /// The largest at the peak comes first.
    pub fn layers(&self, device: i32) -> Vec<(LayerView, u64)> {
        let before = self.at_start.get(&device).map(|start| start.layers.as_slice()).unwrap_or_default();
        let mut layers: Vec<(LayerView, u64)> = self
            .model
            .layers(device)
            .into_iter()
            .map(|now| {
                let same = before.iter().find(|start| (start.root, &start.name) == (now.root, &now.name));
                let at_start = same.map_or(0, |start| start.live_bytes);
                (now, at_start)
            })
            .filter(|(now, at_start)| at_start + now.live_bytes + now.live_bytes_at_peak > 0)
            .collect();
        layers.sort_by_key(|(now, _)| Reverse(now.live_bytes_at_peak));
        layers
    }

    pub(crate) fn take(&mut self, record: &Record<'_>) {
        // Names of allocations in the block may be known only after it. They are definitions, not events.
        if !self.is_over || record.time().is_none() {
            self.model.apply(record.clone());
        }
    }
}
