//! The parts of a page that follows a run, at the latest state or an earlier one.
//!
//! The parts are those of the report, drawn from the model at the displayed moment. Only the chart, the findings and
//! the steps always cover the whole run.

use maud::{Markup, html};
use memlab_trace::{DeviceView, HOST, Model};

use super::super::names::ReportNames;
use super::device::{flamegraphs, limit_tile, peak_moment, titled};
use super::{gpu_time, layers, map, memory, ooms, tables, timeline};
use crate::export::flamegraph::Measure;
use crate::page::elements::{note, size, tiles};
use memlab_units::format;

/// A part of the page; one is shown at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PagePart {
    /// Categories, and out-of-memory errors.
    #[default]
    Memory,
    /// By line.
    Lines,
    /// By layer.
    Layers,
    /// By call.
    Calls,
    /// Segments, and the blocks in them.
    Map,
    /// By step, and growing lines.
    Steps,
    /// GPU time.
    Time,
    /// Ranges, and memory outside the caching allocator.
    Others,
}

impl PagePart {
    /// All parts, in the order of their tabs.
    pub const ALL: [Self; 8] =
        [Self::Memory, Self::Lines, Self::Layers, Self::Calls, Self::Map, Self::Steps, Self::Time, Self::Others];

    /// Name in an address.
    pub fn as_str(self) -> &'static str {
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

    /// Name on the tab.
    pub fn title(self) -> &'static str {
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

    /// Finds the part of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|part| part.as_str() == name)
    }
}

/// Moment of a page.
#[derive(Clone, Copy)]
pub struct Shown<'m> {
    /// Latest state of the run.
    pub run: &'m Model,
    /// State at the moment; `None`: the latest.
    pub then: Option<&'m Model>,
    /// Label of the latest state: `now`, `at the end`.
    pub latest: &'static str,
}

impl<'m> Shown<'m> {
    fn names(self) -> ReportNames<'m> {
        match self.then {
            Some(then) => ReportNames::until(then, "then"),
            None => ReportNames::until(self.run, self.latest),
        }
    }

    /// A device at the moment. Its name and size may become known only later.
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
pub fn findings(run: &Model) -> Markup {
    super::findings::section(&ReportNames::new(run))
}

/// The chart of the run, with a mark at the moment.
pub fn chart(shown: Shown<'_>, index: i32) -> Markup {
    let Some(device) = shown.run.device(index) else { return Markup::default() };
    let mark = shown.then.map(|then| timeline::Mark {
        time: then.time(),
        text: format!("{} allocated", size(then.totals(index).allocated_bytes)),
    });
    html! { h2 { "Memory over time" } (timeline::figure(shown.run, &device, mark.as_ref())) }
}

/// The main figures.
pub fn figures(shown: Shown<'_>, index: i32) -> Markup {
    let device = shown.device(index);
    let of_total = |bytes| match device.total_bytes {
        0 => String::new(),
        total => format!("{} of {}", format::percent(bytes, total), size(total)),
    };
    let most = |bytes| format!("at most {}", size(bytes));
    let mut figures = Vec::new();
    if device.allocations > 0 {
        figures.push(("allocated", device.allocated_bytes, of_total(device.allocated_bytes)));
        figures.push(("reserved", device.reserved_bytes, most(device.peak_reserved_bytes)));
    }
    figures.push(("in use on the device", device.used_bytes, most(device.peak_used_bytes)));
    if device.allocations > 0 {
        figures.push(("peak allocated", device.peak_allocated_bytes, peak_moment(&shown.names(), &device)));
    }
    if device.peak_host_bytes > 0 {
        figures.push(("in host memory", device.host_bytes, most(device.peak_host_bytes)));
    }
    figures.extend(limit_tile(&device));
    tiles(&figures)
}

/// One part, of one device.
pub fn part(shown: Shown<'_>, index: i32, part: PagePart) -> Markup {
    let (names, device) = (shown.names(), shown.device(index));
    let html = match part {
        PagePart::Memory => html! { (ooms::section(&names, &device)) (memory::figure(&names, &device)) },
        PagePart::Lines => tables::lines_until(&names, &device),
        PagePart::Layers => {
            let blocks = names.model.blocks(index);
            let holders = layers::holders(names.model, index, blocks.iter());
            layers::tree_and_each(&names, &device, &holders, names.latest, 1)
        }
        PagePart::Calls => {
            let held = if names.latest == "now" { "held now" } else { "held then" };
            flamegraphs(&names, &device, 1, &names.model.calls(index), (Measure::Live, held))
        }
        PagePart::Map => map::figure(&names, &device),
        PagePart::Steps => {
            let run = ReportNames::until(shown.run, shown.latest);
            let steps = tables::steps(&run, &device, 1);
            titled(&device, &[("Growth between steps", tables::growth(&run, &device)), ("Steps", steps)])
        }
        PagePart::Time => gpu_time::chapter(&names, &device, 1),
        PagePart::Others => titled(
            &device,
            &[
                ("Named ranges", tables::ranges(&names, &device, 1)),
                ("Driver memory outside PyTorch’s allocator", tables::driver(&names, index)),
                ("Pinned host memory", tables::driver(&names, HOST)),
            ],
        ),
    };
    if html.0.is_empty() { note(nothing(part)) } else { html }
}

/// Explains an empty part, and how to fill it.
fn nothing(part: PagePart) -> &'static str {
    match part {
        PagePart::Memory | PagePart::Lines | PagePart::Calls => "Nothing was allocated by then.",
        PagePart::Layers => "No layer has allocated memory. Layers are PyTorch modules that the program called.",
        PagePart::Map => "PyTorch’s allocator had no memory of this device then.",
        PagePart::Steps => "No step has ended: a step is a call of an optimizer’s step().",
        PagePart::Time => {
            "Kernels were not recorded: start the program with `memlab run --time`; `memlab doctor` checks whether that \
             works here."
        }
        PagePart::Others => "The program names no ranges, and only PyTorch’s allocator has memory of this device.",
    }
}
