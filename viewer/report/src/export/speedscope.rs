//! Allocated memory at a moment as a profile for <https://www.speedscope.app>. The width of a call is the memory
//! allocated below it.
//!
//! The format: <https://www.speedscope.app/file-format-schema.json>.

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::Arc;

use memlab_trace::{Line, Model, StackView};
use serde::Serialize;

use memlab_base::json::write_compact;
use memlab_base::moment::NamedMoment;
use memlab_base::text::{NO_RANGE, clean, short_command, short_path};

#[derive(Serialize)]
struct File {
    #[serde(rename = "$schema")]
    schema: &'static str,
    name: String,
    exporter: &'static str,
    #[serde(rename = "activeProfileIndex")]
    active_profile_index: usize,
    shared: Shared,
    profiles: Vec<Profile>,
}

#[derive(Default, Serialize)]
struct Shared {
    frames: Vec<Frame>,
}

#[derive(Serialize)]
struct Frame {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
}

#[derive(Serialize)]
struct Profile {
    #[serde(rename = "type")]
    kind: &'static str,
    name: String,
    unit: &'static str,
    #[serde(rename = "startValue")]
    start_value: u64,
    #[serde(rename = "endValue")]
    end_value: u64,
    /// Outermost frame first, as indexes into the shared frames.
    samples: Vec<Vec<usize>>,
    weights: Vec<u64>,
}

/// Writes a profile for each device, or for one of them, and another by range if the program names ranges.
///
/// At `peak`, each device is shown at its own peak, taken from the state at the end. Any other `moment` requires the
/// state at that moment.
///
/// # Errors
///
/// Errors of `out`.
pub fn write(out: &mut dyn Write, model: &Model, moment: NamedMoment, device: Option<i32>) -> io::Result<()> {
    let header = model.header().cloned().unwrap_or_default();
    let mut frames = Frames {
        directory: &header.directory,
        shared: Shared::default(),
        known: HashMap::new(),
        ranges: HashMap::new(),
    };
    let mut profiles = Vec::new();
    let mut active = (0, 0);
    for view in model.devices().into_iter().filter(|view| device.is_none_or(|device| device == view.index)) {
        let bytes = |stack: &StackView| match moment {
            NamedMoment::Peak => stack.live_bytes_at_peak,
            _ => stack.live_bytes,
        };
        let stacks = model.stacks(view.index).into_iter();
        let held: Vec<(Vec<usize>, u64)> = stacks
            .filter(|stack| bytes(stack) > 0)
            .map(|stack| (frames.stack(&model.frames(stack.stack)), bytes(&stack)))
            .collect();
        let by_stack = profile(format!("cuda:{} allocated at {moment}", view.index), held);
        if by_stack.end_value > active.0 {
            active = (by_stack.end_value, profiles.len());
        }
        profiles.push(by_stack);
        if model.ranges(view.index).is_empty() {
            continue;
        }
        // The same memory, by the ranges that the program names.
        let stacks = model.stacks_in_ranges(view.index).into_iter();
        let held = stacks
            .filter(|(_, stack)| bytes(stack) > 0)
            .map(|(range, stack)| {
                let mut calls = frames.range(&model.range_path(range));
                calls.extend(frames.stack(&model.frames(stack.stack)));
                (calls, bytes(&stack))
            })
            .collect();
        profiles.push(profile(format!("cuda:{} allocated at {moment}, by range", view.index), held));
    }
    let file = File {
        schema: "https://www.speedscope.app/file-format-schema.json",
        name: short_command(&header.command),
        exporter: concat!("memlab@", env!("CARGO_PKG_VERSION")),
        active_profile_index: active.1,
        shared: frames.shared,
        profiles,
    };
    write_compact(out, &file)
}

/// Makes a profile from the memory of stacks.
fn profile(name: String, mut held: Vec<(Vec<usize>, u64)>) -> Profile {
    // Sorted, because neighbours with shared outer calls are drawn as one.
    held.sort_unstable();
    let (samples, weights): (Vec<_>, Vec<u64>) = held.into_iter().unzip();
    let end_value = weights.iter().fold(0_u64, |sum, weight| sum.saturating_add(*weight));
    Profile { kind: "sampled", name, unit: "bytes", start_value: 0, end_value, samples, weights }
}

/// The frames of the export, each once.
struct Frames<'h> {
    directory: &'h str,
    shared: Shared,
    known: HashMap<Option<Arc<Line>>, usize>,
    /// Frames by the name of a range.
    ranges: HashMap<Arc<str>, usize>,
}

impl Frames<'_> {
    /// Frames of the enclosing ranges and a range, outermost first.
    fn range(&mut self, path: &[Arc<str>]) -> Vec<usize> {
        let none = [Arc::from(NO_RANGE)];
        let path = if path.is_empty() { &none } else { path };
        path.iter()
            .map(|name| {
                *self.ranges.entry(name.clone()).or_insert_with(|| {
                    self.shared.frames.push(Frame { name: clean(name).into_owned(), file: None, line: None });
                    self.shared.frames.len() - 1
                })
            })
            .collect()
    }

    /// Frames of a stack, outermost first; the input is innermost first.
    fn stack(&mut self, stack: &[Arc<Line>]) -> Vec<usize> {
        if stack.is_empty() {
            return vec![self.index(None)];
        }
        stack.iter().rev().map(|line| self.index(Some(line))).collect()
    }

    fn index(&mut self, line: Option<&Arc<Line>>) -> usize {
        if let Some(index) = self.known.get(&line.cloned()) {
            return *index;
        }
        let frame = match line {
            None => Frame { name: "(no Python line)".to_owned(), file: None, line: None },
            Some(line) => Frame {
                name: clean(&line.function).into_owned(),
                file: Some(clean(short_path(&line.file, self.directory)).into_owned()),
                line: line.line,
            },
        };
        self.shared.frames.push(frame);
        self.known.insert(line.cloned(), self.shared.frames.len() - 1);
        self.shared.frames.len() - 1
    }
}
