//! The page of a trace: header of the process, contents and notes.

use std::path::Path;

use maud::{Markup, html};
use memlab_trace::{DeviceView, Model};

use super::super::text::ending;
use crate::page;
use crate::page::elements::{self, broken, cut, name, note, plural, short_name};
use memlab_base::parallel;
use memlab_units::format;

/// Maximum number of devices shown in full; a machine has up to sixteen.
pub(super) const DEVICES: usize = 16;

/// A whole page around its content.
pub(super) fn document(path: &Path, command: &str, body: &Markup) -> String {
    let file = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    page::document("report", command, &format!("from {}", name(&file)), body)
}

/// Description of the process.
pub(super) fn header(model: &Model, command: &str) -> Markup {
    let header = model.header().cloned().unwrap_or_default();
    let mut facts = vec![format!("pid {}", header.pid)];
    match (header.rank, header.world_size) {
        (Some(rank), Some(size)) => facts.push(format!("rank {rank} of {size}")),
        (Some(rank), None) => facts.push(format!("rank {rank}")),
        (None, _) => {}
    }
    if !header.host.is_empty() {
        facts.push(format!("on {}", header.host));
    }
    facts.extend(parallel::facts(model));
    if header.start_unix_ns > 0 {
        facts.push(format::date(header.start_unix_ns));
    }
    facts.push(format!("ran {}", format::duration(model.time())));
    if model.steps_ended() > 0 {
        facts.push(plural(model.steps_ended(), "step"));
    }
    facts.extend(model.software().iter().take(4).map(|software| format!("{} {}", software.software, software.version)));
    facts.push(plural(model.events(), "event"));
    facts.push(ending(model));
    elements::header("report", &cut(command, 400), Some(cut(&header.command.join(" "), 1000)), &facts)
}

/// Links to the sections of the devices.
pub(super) fn contents_of<'d>(devices: impl Iterator<Item = (&'d DeviceView, String)>) -> Markup {
    html! {
        nav aria-label="devices" {
            ul {
                @for (device, held) in devices {
                    li { a href={ "#device-" (device.index) } { (short_name(device)) } " " (held) }
                }
            }
        }
    }
}

/// Note on devices left out.
pub(super) fn left_out(devices: usize) -> Markup {
    html! { @if devices > DEVICES { (note(&format!("{} more devices: see --json.", devices - DEVICES))) } }
}

/// Section of pinned host memory, if any.
pub(super) fn host(pinned: &Markup) -> Markup {
    html! { @if !pinned.0.is_empty() { section #host { h2 { "Pinned host memory" } (pinned) } } }
}

/// Notes on the trace itself.
pub(in crate::report) fn notes(notes: &[Vec<String>]) -> Markup {
    html! {
        @if !notes.is_empty() {
            section #notes {
                h2 { "About the trace" }
                ul { @for note in notes { li { (broken(note)) } } }
            }
        }
    }
}
