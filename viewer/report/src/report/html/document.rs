//! The page of a trace: the header of the process, contents and notes.

use std::borrow::Cow;
use std::path::Path;

use memlab_trace::{DeviceView, Model};

use super::super::text::ending;
use crate::page;
use crate::page::elements::{name, plural, short_name};
use memlab_base::parallel;
use memlab_base::text::{fit_end, markup};
use memlab_units::format;

/// The most devices shown in full; a machine has sixteen.
pub(super) const DEVICES: usize = 16;

/// A whole page around what it says.
pub(super) fn document(path: &Path, command: &str, body: &str) -> String {
    let file = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    page::document("report", command, &format!("from {}", name(&file)), body)
}

/// Which process this is.
pub(super) fn header(model: &Model, command: &str) -> String {
    let header = model.header().cloned().unwrap_or_default();
    let mut facts: Vec<Cow<'_, str>> = vec![format!("pid {}", header.pid).into()];
    match (header.rank, header.world_size) {
        (Some(rank), Some(size)) => facts.push(format!("rank {rank} of {size}").into()),
        (Some(rank), None) => facts.push(format!("rank {rank}").into()),
        (None, _) => {}
    }
    if !header.host.is_empty() {
        facts.push(format!("on {}", header.host).into());
    }
    facts.extend(parallel::facts(model).into_iter().map(Cow::from));
    if header.start_unix_ns > 0 {
        facts.push(format::date(header.start_unix_ns).into());
    }
    facts.push(format!("ran {}", format::duration(model.time())).into());
    if model.steps_ended() > 0 {
        facts.push(plural(model.steps_ended(), "step").into());
    }
    for software in model.software().iter().take(4) {
        facts.push(format!("{} {}", software.software, software.version).into());
    }
    facts.push(plural(model.events(), "event").into());
    facts.push(ending(model).into());
    let facts: String = facts.iter().map(|fact| format!("<li>{}</li>", name(fact))).collect();
    let whole: Vec<&str> = header.command.iter().map(String::as_str).collect();
    format!(
        "<header>\n<p class=\"brand\">memlab report</p>\n<h1 title=\"{}\">{}</h1>\n<ul class=\"facts\">{facts}</ul>\n</header>\n",
        markup(&fit_end(&whole.join(" "), 1000, "…")),
        markup(&fit_end(command, 400, "…")),
    )
}

/// Links to the sections of the devices.
pub(super) fn contents_of<'d>(devices: impl Iterator<Item = (&'d DeviceView, String)>) -> String {
    let entry = |(device, held): (&DeviceView, String)| {
        format!("<li><a href=\"#device-{}\">{}</a> {held}</li>", device.index, short_name(device))
    };
    format!("<nav aria-label=\"devices\"><ul>{}</ul></nav>\n", devices.map(entry).collect::<String>())
}

/// What the reader should know of the trace itself.
pub(in crate::report) fn notes(notes: &[Vec<String>]) -> String {
    if notes.is_empty() {
        return String::new();
    }
    let note = |note: &Vec<String>| {
        let lines: Vec<String> = note.iter().map(|line| markup(&fit_end(line, 400, "…")).into_owned()).collect();
        format!("<li>{}</li>\n", lines.join("<br>"))
    };
    format!(
        "<section id=\"notes\">\n<h2>About the trace</h2>\n<ul>\n{}</ul>\n</section>\n",
        notes.iter().map(note).collect::<String>()
    )
}
