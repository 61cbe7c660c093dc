//! Figures by line of profiled functions.
//!
//! Two sources. *Marks* say when a profiled function begins a line: between two marks of a frame, the line runs, and the
//! most that PyTorch's counters reached meanwhile, on whatever thread, is the line's peak. *Stacks* of allocations say which
//! lines an allocation belongs to: on any thread, in backward (which has the stack of the forward operation), and in
//! recursion, where a line that is in a stack twice is counted once.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use memlab_trace::Model;
use memlab_trace::record::Record;

use crate::allocator_stats::{AllocatorStats, COUNTERS, Counters, POOLS};
use crate::mark::{Moment, Sample};

/// A profiled function.
#[derive(Clone, Debug)]
pub struct Function {
    /// The names under which frames of its file may be recorded.
    pub files: Vec<Arc<str>>,
    /// The names under which it may be recorded.
    pub names: Vec<Arc<str>>,
    /// Its first and last line.
    pub lines: (u32, u32),
}

/// The figures of one line on one device.
#[derive(Clone, Debug, Default)]
pub struct LineFigures {
    /// How often it ran.
    pub hits: u64,
    /// The most at the end of an execution.
    pub current: Counters,
    /// The most during an execution.
    pub peak: Counters,
    /// The most at the end of an execution that PyTorch had allocated since the program began.
    pub allocated: Counters,
    /// The same of what it had freed.
    pub freed: Counters,
    /// The most that an execution had more allocated than at its beginning.
    pub peak_growth: u64,
    /// Bytes allocated by the line, in it or below it.
    pub line_allocated: u64,
    /// How many blocks they were.
    pub line_allocations: u64,
    /// Part of `line_allocated` that has been freed, anywhere.
    pub line_freed: u64,
    /// Part of `line_allocated` that backward allocated for the line's operations.
    pub line_backward: u64,
    /// PyTorch's own counters at the ends of executions at which they were asked for: the most of each.
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

/// What belongs to a block that the profile counted.
struct CountedBlock {
    lines: Arc<[Key]>,
    bytes: u64,
}

/// Function, line, device.
type Key = (u32, u32, i32);

/// A profile of some functions.
#[derive(Default)]
pub struct LineProfile {
    /// The functions.
    pub functions: Vec<Function>,
    figures: HashMap<Key, LineFigures>,
    open: HashMap<u64, Vec<OpenLine>>,
    is_enabled: bool,
    /// By frame of the trace: function and line.
    frames: HashMap<u32, (u32, u32)>,
    /// By stack and device.
    stacks: HashMap<(u32, i32), Arc<[Key]>>,
    blocks: HashMap<(i32, u64), CountedBlock>,
}

impl LineProfile {
    /// Adds a function; `known`: the frames that are defined already.
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

    /// Forgets all figures, but not the functions.
    pub fn clear(&mut self) {
        self.figures.clear();
        self.blocks.clear();
    }

    /// The figures of the lines that ran or allocated: function, line, device, figures.
    pub fn figures(&self) -> impl Iterator<Item = (u32, u32, i32, &LineFigures)> {
        self.figures.iter().map(|((function, line, device), figures)| (*function, *line, *device, figures))
    }

    /// A frame was defined.
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

    /// A record was applied to `model` and counted by its device's `stats`. `rose`: some of these became more.
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

    /// The lines of the profile that are in a stack.
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

    /// Something happened in the program. `stats`: of all devices.
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

    /// The line that a frame is in ends, and those of frames that it called and that were left unseen.
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
                    // The peak of the whole program, if it was reached in this line.
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
