//! Figures by line of profiled functions.
//!
//! The figures have two sources:
//!
//! - *Marks* record the moment when a profiled function begins a line. The line runs between two marks of a frame. Its peak is
//!   the highest value of PyTorch's counters during that time, on any thread.
//! - *Stacks* of allocations name the lines that an allocation belongs to: on any thread, in backward (with the stack of the
//!   forward operation), and in recursion. A line that occurs twice in a stack is counted once.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use memlab_trace::Model;
use memlab_trace::record::Record;

use crate::allocator_stats::{AllocatorStats, COUNTERS, Counters, POOLS};
use crate::mark::{Moment, Sample};

/// A profiled function.
#[derive(Clone, Debug)]
pub struct Function {
    /// Names under which frames of its file may be recorded.
    pub files: Vec<Arc<str>>,
    /// Names under which the function may be recorded.
    pub names: Vec<Arc<str>>,
    /// First and last line.
    pub lines: (u32, u32),
}

/// Figures of one line on one device.
#[derive(Clone, Debug, Default)]
pub struct LineFigures {
    /// Number of executions.
    pub hits: u64,
    /// Highest values at the end of an execution.
    pub current: Counters,
    /// Highest values during an execution.
    pub peak: Counters,
    /// Highest total, at the end of an execution, of PyTorch's allocations since the program started.
    pub allocated: Counters,
    /// Highest total, at the end of an execution, of PyTorch's frees since the program started.
    pub freed: Counters,
    /// Largest growth of allocated bytes during an execution, above its start.
    pub peak_growth: u64,
    /// Bytes allocated by the line, in it or in functions that it calls.
    pub line_allocated: u64,
    /// Number of those blocks.
    pub line_allocations: u64,
    /// Part of `line_allocated` that has been freed, anywhere.
    pub line_freed: u64,
    /// Part of `line_allocated` that backward allocated for the line's operations.
    pub line_backward: u64,
    /// Highest values of PyTorch's own counters at the ends of the executions that sampled them.
    pub sample: Option<Sample>,
}

/// A line that is running.
struct OpenLine {
    frame: u64,
    function: u32,
    line: u32,
    device: i32,
    start: u64,
    peak: Counters,
    sample_at_start: Option<Box<Sample>>,
}

/// A block that the profile counted, with its lines.
struct CountedBlock {
    lines: Arc<[Key]>,
    bytes: u64,
}

/// Function, line and device.
type Key = (u32, u32, i32);

/// Line profile of some functions.
#[derive(Default)]
pub struct LineProfile {
    /// Profiled functions.
    pub functions: Vec<Function>,
    figures: HashMap<Key, LineFigures>,
    open: HashMap<u64, Vec<OpenLine>>,
    is_enabled: bool,
    /// Function and line of each frame of the trace.
    frames: HashMap<u32, (u32, u32)>,
    /// Lines of each stack, by stack and device.
    stacks: HashMap<(u32, i32), Arc<[Key]>>,
    blocks: HashMap<(i32, u64), CountedBlock>,
}

impl LineProfile {
    /// Adds a function.
    ///
    /// `known` contains the frames that are already defined.
    pub(crate) fn add<'f>(
        &mut self,
        function: Function,
        known: impl Iterator<Item = (u32, &'f Arc<str>, u32, &'f Arc<str>)>,
    ) -> u32 {
        self.functions.push(function);
        for (frame, file, line, name) in known {
            self.define(frame, file, line, name);
        }
        self.stacks.clear();
        (self.functions.len() - 1) as u32
    }

    /// Clears all figures, but keeps the functions.
    pub fn clear(&mut self) {
        self.figures.clear();
        self.blocks.clear();
    }

    /// Figures of the lines that ran or allocated: function, line, device, figures.
    pub fn figures(&self) -> impl Iterator<Item = (u32, u32, i32, &LineFigures)> {
        self.figures.iter().map(|((function, line, device), figures)| (*function, *line, *device, figures))
    }

    /// Matches a newly defined frame with the functions.
    pub(crate) fn define(&mut self, frame: u32, file: &str, line: u32, name: &str) {
        let is_of = |function: &Function| {
            (function.lines.0..=function.lines.1).contains(&line)
                && function.names.iter().any(|known| **known == *name)
                && function.files.iter().any(|known| **known == *file)
        };
        if let Some(function) = self.functions.iter().position(is_of) {
            self.frames.insert(frame, (function as u32, line));
        }
    }

    /// Counts a record that `model` and `stats`, the statistics of its device, have already applied.
    ///
    /// `rose` is true if a statistic increased.
    pub(crate) fn take(&mut self, record: &Record<'_>, device: i32, stats: &AllocatorStats, rose: bool, model: &Model) {
        if rose {
            for line in self.open.values_mut().flatten().filter(|line| line.device == device) {
                raise(&mut line.peak, &stats.current);
            }
        }
        match record {
            Record::Alloc(event) if self.is_enabled => {
                let is_backward = event.flags.phase() == memlab_trace::record::Phase::Backward;
                self.allocated(event.stack, device, event.address, event.bytes, is_backward, model);
            }
            Record::DriverAlloc(event) if self.is_enabled && event.is_block() => {
                self.allocated(event.stack, device, event.address, event.bytes, false, model);
            }
            Record::Free(event) => self.freed(device, event.address),
            Record::DriverFree(event) => self.freed(device, event.address),
            _ => {}
        }
    }

    fn allocated(&mut self, stack: u32, device: i32, address: u64, bytes: u64, backward: bool, model: &Model) {
        if self.frames.is_empty() {
            return;
        }
        let lines = self.lines_of(stack, device, model);
        if lines.is_empty() {
            return;
        }
        for key in &*lines {
            let figures = self.figures.entry(*key).or_default();
            figures.line_allocated += bytes;
            figures.line_allocations += 1;
            figures.line_backward += if backward { bytes } else { 0 };
        }
        self.blocks.insert((device, address), CountedBlock { lines, bytes });
    }

    fn freed(&mut self, device: i32, address: u64) {
        let Some(block) = self.blocks.remove(&(device, address)) else { return };
        for key in &*block.lines {
            if let Some(figures) = self.figures.get_mut(key) {
                figures.line_freed += block.bytes;
            }
        }
    }

    /// Returns the lines of the profile that occur in a stack.
    fn lines_of(&mut self, stack: u32, device: i32, model: &Model) -> Arc<[Key]> {
        if let Some(lines) = self.stacks.get(&(stack, device)) {
            return lines.clone();
        }
        let mut seen = HashSet::new();
        let found = model.frame_ids(stack).into_iter().filter_map(|frame| self.frames.get(&frame));
        let lines: Arc<[Key]> =
            found.filter(|at| seen.insert(**at)).map(|(function, line)| (*function, *line, device)).collect();
        self.stacks.insert((stack, device), lines.clone());
        lines
    }

    /// Processes a moment.
    ///
    /// `stats` contains the statistics of all devices.
    pub(crate) fn moment(&mut self, moment: Moment, stats: &HashMap<i32, AllocatorStats>) {
        match moment {
            Moment::Enabled => self.is_enabled = true,
            Moment::Disabled => {
                self.is_enabled = false;
                let threads: Vec<u64> = self.open.keys().copied().collect();
                for thread in threads {
                    self.close(thread, 0, None, stats);
                }
                self.open.clear();
            }
            Moment::Line { thread, frame, function, line, device, sample } => {
                self.leave(thread, frame, sample.as_deref(), stats);
                let current = stats.get(&device).map(|stats| stats.current).unwrap_or_default();
                let open = OpenLine {
                    frame,
                    function,
                    line,
                    device,
                    start: current[1][0],
                    peak: current,
                    sample_at_start: sample,
                };
                self.open.entry(thread).or_default().push(open);
            }
            Moment::Left { thread, frame, sample } => self.leave(thread, frame, sample.as_deref(), stats),
        }
    }

    /// Ends the line that a frame is in, and the lines of frames that it called and whose ends were not seen.
    fn leave(&mut self, thread: u64, frame: u64, sample: Option<&Sample>, stats: &HashMap<i32, AllocatorStats>) {
        let Some(lines) = self.open.get(&thread) else { return };
        if let Some(at) = lines.iter().rposition(|line| line.frame == frame) {
            self.close(thread, at, sample, stats);
        }
    }

    /// Ends the lines of a thread from the `from`th on.
    fn close(&mut self, thread: u64, from: usize, sample: Option<&Sample>, stats: &HashMap<i32, AllocatorStats>) {
        let Some(lines) = self.open.get_mut(&thread) else { return };
        for line in lines.drain(from..) {
            let figures = self.figures.entry((line.function, line.line, line.device)).or_default();
            figures.hits += 1;
            raise(&mut figures.peak, &line.peak);
            figures.peak_growth = figures.peak_growth.max(line.peak[1][0].saturating_sub(line.start));
            if let Some(stats) = stats.get(&line.device) {
                raise(&mut figures.current, &stats.current);
                raise(&mut figures.allocated, &stats.allocated);
                raise(&mut figures.freed, &stats.freed);
            }
            if let (Some(end), Some(start)) = (sample, &line.sample_at_start) {
                let most = figures.sample.get_or_insert_with(|| vec![[0; 4]; end.len()]);
                for ((most, start), end) in most.iter_mut().zip(&**start).zip(end) {
                    let [current, peak, allocated, freed] = *end;
                    // Peak of the whole program, if it was reached in this line.
                    let peak = if peak > start[1] { peak } else { current.max(start[0]) };
                    for (most, value) in most.iter_mut().zip([current, peak, allocated, freed]) {
                        *most = (*most).max(value);
                    }
                }
            }
        }
    }
}

fn raise(most: &mut Counters, now: &Counters) {
    for statistic in 0..COUNTERS {
        for pool in 0..POOLS {
            most[statistic][pool] = most[statistic][pool].max(now[statistic][pool]);
        }
    }
}
