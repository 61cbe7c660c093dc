//! The parts of a page that follows a run: of the latest state, or of an earlier one.
//!
//! The parts are those of the report, drawn from the model as it was at the shown moment. Only the chart, the findings and the
//! steps are always of the whole run.

use std::fmt::Write as _;

use memlab_trace::{DeviceView, HOST, Model};

use super::super::names::Names;
use super::device::{flamegraphs, put, tiled};
use super::{gpu_time, layers, map, memory, ooms, tables, timeline};
use crate::export::flamegraph::Measure;
use crate::format;
use crate::page::elements::size;
use crate::text::markup;

/// A part of the page, one of which is shown at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Part {
    /// Categories, and out-of-memory errors.
    #[default]
    Memory,
    /// By line.
    Lines,
    /// By layer.
    Layers,
    /// By call.
    Calls,
    /// The segments and what lies in them.
    Map,
    /// By step, and what grows.
    Steps,
    /// What ran on the device.
    Time,
    /// Ranges, and memory that is not the caching allocator's.
    Others,
}

impl Part {
    /// All, in the order of their tabs.
    pub(crate) const ALL: [Self; 8] =
        [Self::Memory, Self::Lines, Self::Layers, Self::Calls, Self::Map, Self::Steps, Self::Time, Self::Others];

    /// Its name in an address.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Lines => "lines",
            Self::Layers => "layers",
            Self::Calls => "calls",
            Self::Map => "map",
            Self::Steps => "steps",
            Self::Time => "time",
            Self::Others => "others",
        }
    }

    /// Its name on its tab.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Memory => "Memory",
            Self::Lines => "Lines",
            Self::Layers => "Layers",
            Self::Calls => "Flamegraph",
            Self::Map => "Memory map",
            Self::Steps => "Steps",
            Self::Time => "GPU time",
            Self::Others => "Others",
        }
    }

    /// The part of this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|part| part.as_str() == name)
    }
}

/// The moment that a page shows.
#[derive(Clone, Copy)]
pub(crate) struct Shown<'m> {
    /// The state as far as the run has come.
    pub(crate) run: &'m Model,
    /// The state at the moment; `None`: the latest.
    pub(crate) then: Option<&'m Model>,
    /// What the latest state of the run is called: `now`, `at the end`.
    pub(crate) latest: &'static str,
}

impl<'m> Shown<'m> {
    fn model(self) -> &'m Model {
        self.then.unwrap_or(self.run)
    }

    fn names(self) -> Names<'m> {
        match self.then {
            Some(then) => Names::until(then, "then"),
            None => Names::until(self.run, self.latest),
        }
    }

    /// A device at the moment. What it is called and has may only be known later.
    fn device(self, index: i32) -> DeviceView {
        let whole = self.run.device(index).unwrap_or_default();
        let Some(then) = self.then else { return whole };
        DeviceView {
            index,
            name: whole.name,
            bus_id: whole.bus_id,
            total_bytes: whole.total_bytes,
            ..then.device(index).unwrap_or_default()
        }
    }
}

/// The findings of the run.
pub(crate) fn findings(run: &Model) -> String {
    super::verdict::verdict(&Names::new(run))
}

/// The chart of the run, with a mark at the moment.
pub(crate) fn chart(shown: Shown<'_>, index: i32) -> String {
    let Some(device) = shown.run.device(index) else { return String::new() };
    let mark = shown.then.map(|then| timeline::Mark {
        time: then.time(),
        text: format!("{} allocated", size(then.totals(index).allocated_bytes)),
    });
    timeline::figure(shown.run, &device, mark.as_ref())
}

/// The figures that matter most.
pub(crate) fn figures(shown: Shown<'_>, index: i32) -> String {
    let device = shown.device(index);
    let of_total = |bytes| match device.total_bytes {
        0 => String::new(),
        total => format!("{} of {}", format::percent(bytes, total), size(total)),
    };
    let most = |bytes| format!("at most {}", size(bytes));
    let mut tiles = Vec::new();
    if device.allocations > 0 {
        tiles.push(("allocated", device.allocated_bytes, of_total(device.allocated_bytes)));
        tiles.push(("reserved", device.reserved_bytes, most(device.peak_reserved_bytes)));
    }
    tiles.push(("in use on the device", device.used_bytes, most(device.peak_used_bytes)));
    if device.allocations > 0 {
        let mut when = format!("after {}", format::duration(device.peak_time));
        if shown.model().steps_ended() > 0 {
            let _ = write!(when, ", {}", format::step_reached(device.peak_step));
        }
        tiles.push(("peak allocated", device.peak_allocated_bytes, when));
    }
    if device.peak_host_bytes > 0 {
        tiles.push(("in host memory", device.host_bytes, most(device.peak_host_bytes)));
    }
    if let Some(limit) = device.limit_bytes {
        let beyond = if device.spills { "beyond it memory is put on the host" } else { "beyond it allocations fail" };
        tiles.push(("limit", limit, beyond.to_owned()));
    }
    tiled(&tiles)
}

/// One part, of one device.
pub(crate) fn part(shown: Shown<'_>, index: i32, part: Part) -> String {
    let (names, device) = (shown.names(), shown.device(index));
    let html = match part {
        Part::Memory => ooms::section(&names, &device) + &memory::figure(&names, &device),
        Part::Lines => tables::lines_until(&names, &device),
        Part::Layers => {
            let blocks = names.model.blocks(index);
            let tree = layers::tree_of(&layers::holders(names.model, index, blocks.iter()), names.latest, 1);
            if tree.is_empty() { tree } else { tree + &layers::each(&names, &device, 1) }
        }
        Part::Calls => calls(&names, &device),
        Part::Map => map::figure(&names, &device),
        Part::Steps => {
            let run = Names::until(shown.run, shown.latest);
            let mut section = String::new();
            let steps = tables::steps(&run, &device, 1);
            put(&mut section, [("Growth between steps", tables::growth(&run, &device)), ("Steps", steps)]);
            section
        }
        Part::Time => gpu_time::chapter(&names, &device, 1),
        Part::Others => {
            let mut section = String::new();
            let parts = [
                ("Ranges that the program names", tables::ranges(&names, &device, 1)),
                ("Driver memory taken by others than PyTorch’s allocator", tables::driver(&names, index)),
                ("Pinned host memory", tables::driver(&names, HOST)),
            ];
            put(&mut section, parts);
            section
        }
    };
    if html.is_empty() { format!("<p class=\"note\">{}</p>\n", markup(nothing(part))) } else { html }
}

/// What a part without content means, and how to get some.
fn nothing(part: Part) -> &'static str {
    match part {
        Part::Memory | Part::Lines | Part::Calls => "Nothing was allocated until then.",
        Part::Layers => "No layer has allocated anything: layers are PyTorch modules that were called.",
        Part::Map => "PyTorch’s allocator had no memory of this device then.",
        Part::Steps => "No step has ended: a step is a call of an optimizer’s step().",
        Part::Time => {
            "Kernels were not recorded: start the program with `memlab run --time`; `memlab doctor` says whether that works here."
        }
        Part::Others => "The program names no ranges, and nobody but PyTorch’s allocator has memory of this device.",
    }
}

/// Who called whom, of what was held at the moment.
fn calls(names: &Names<'_>, device: &DeviceView) -> String {
    let all = names.model.calls(device.index);
    if all.total().live_bytes == 0 {
        return String::new();
    }
    let held = if names.latest == "now" { "is held now" } else { "was held then" };
    flamegraphs(names, device, 1, &all, (Measure::Live, held))
}
