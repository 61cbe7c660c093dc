//! The frame of a page: head, style, scripts, the header of the process, contents and notes.

use std::borrow::Cow;
use std::collections::hash_map::RandomState;
use std::fmt::Write as _;
use std::hash::{BuildHasher, Hasher};
use std::path::Path;

use memlab_trace::{Category, DeviceView, Model};
use ratatui::style::Color;

use super::super::text::ending;
use super::elements::{LONGEST, name, plural, short_name};
use crate::export::{flamegraph, svg};
use crate::format;
use crate::text::{fit_end, markup};
use crate::theme::{Depth, Palette, Theme};

/// The most devices shown in full; a machine has sixteen.
pub(super) const DEVICES: usize = 16;

/// A whole page around what it says.
pub(super) fn document(path: &Path, command: &str, body: &str) -> String {
    let nonce = nonce();
    let title = markup(&fit_end(command, LONGEST, "…")).into_owned();
    let file = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    format!(
        "<!DOCTYPE html>
<html lang=\"en\">
<head>
<meta charset=\"utf-8\">
<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'nonce-{nonce}'; \
         base-uri 'none'; form-action 'none'\">
<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">
<meta name=\"color-scheme\" content=\"light dark\">
<title>{title} – memlab report</title>
<style>
{colors}{style}{flames}</style>
</head>
<body>
{body}<footer>Made by memlab {version} from {file}.</footer>
<script nonce=\"{nonce}\">
{script}{flame_script}</script>
</body>
</html>
",
        colors = colors(),
        style = include_str!("style.css"),
        flames = flamegraph::STYLE,
        script = include_str!("script.js"),
        flame_script = flamegraph::SCRIPT,
        version = env!("CARGO_PKG_VERSION"),
        file = name(&file),
    )
}

/// A random word, so that only the scripts of this page run.
fn nonce() -> String {
    let word = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", word(), word())
}

/// The dashboard's colours, for the light and the dark page: categories, text on them, the chart's bands.
fn colors() -> String {
    let variables = |palette: Palette| {
        let theme = Theme::new(palette, Depth::True, true);
        let hex = |color: Color| svg::hex(color).unwrap_or_else(|| "currentColor".to_owned());
        let mut text = String::new();
        for (index, category) in Category::ALL.into_iter().enumerate() {
            let _ = write!(
                text,
                "--c{index}:{};--on{index}:{};",
                hex(theme.category(category)),
                hex(theme.on_category[index])
            );
        }
        for (index, band) in theme.bands.into_iter().enumerate() {
            let _ = write!(text, "--band{index}:{};", hex(band));
        }
        text
    };
    let classes: String = (0..Category::ALL.len())
        .map(|index| format!(".c{index}{{--c:var(--c{index});--on:var(--on{index})}}"))
        .collect();
    format!(
        ":root{{{}}}\n@media (prefers-color-scheme: dark){{:root{{{}}}}}\n{classes}\n",
        variables(Palette::Light),
        variables(Palette::Dark)
    )
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
pub(super) fn notes(notes: &[Vec<String>]) -> String {
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
