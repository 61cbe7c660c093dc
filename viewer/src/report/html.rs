//! The report as a page: one HTML file that needs nothing else, to look at, to print and to pass on.
//!
//! Nothing a trace says is trusted: every text goes through [`crate::text::markup`], names are cut to a length, tables
//! and pictures are capped, and the page's own policy lets no script run but its own and nothing be fetched.

mod at;
mod device;
mod layers;
mod memory;
mod ooms;
mod tables;
mod timeline;
mod verdict;

use std::borrow::Cow;
use std::collections::hash_map::RandomState;
use std::fmt::Write as _;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::path::Path;

use memlab_trace::{Category, DeviceView, HOST, Loaded, Model};
use ratatui::style::Color;

pub use at::write_html_at;

use super::sections::Names;
use super::text::{ending, notes_on};
use crate::export::{flamegraph, svg};
use crate::format::{self, Units};
use crate::text::{fit_end, markup, short_command};
use crate::theme::{Depth, Palette, Theme};

/// The most devices told in full; a machine has sixteen.
const DEVICES: usize = 16;

/// The longest name shown, in columns.
const LONGEST: usize = 120;

/// Writes the report of a trace as an HTML page.
///
/// # Errors
///
/// What `out` says.
pub fn write_html(out: &mut impl io::Write, path: &Path, loaded: &Loaded) -> io::Result<()> {
    out.write_all(page(path, loaded).as_bytes())
}

fn page(path: &Path, loaded: &Loaded) -> String {
    let model = &loaded.model;
    let names = Names::new(model);
    let devices = model.devices();
    let told = &devices[..devices.len().min(DEVICES)];
    let command = model.header().map_or_else(String::new, |header| short_command(&header.command));

    let mut body = header(model, &command);
    body += "<main>\n";
    body += &verdict::verdict(&names);
    if told.len() > 1 {
        body += &contents(told);
    }
    for device in told {
        body += &device::section(&names, device, told.len());
    }
    if devices.is_empty() {
        body += "<p class=\"note\">No GPU memory was allocated.</p>\n";
    }
    if devices.len() > told.len() {
        let _ = writeln!(body, "<p class=\"note\">{} more devices: see --json.</p>", devices.len() - told.len());
    }
    let pinned = tables::driver(&names, HOST);
    if !pinned.is_empty() {
        let _ = write!(body, "<section id=\"host\">\n<h2>Pinned host memory</h2>\n{pinned}</section>\n");
    }
    body += &notes(&notes_on(loaded));
    body += "</main>\n";
    document(path, &command, &body)
}

/// A whole page around what it says.
fn document(path: &Path, command: &str, body: &str) -> String {
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
        style = include_str!("html/style.css"),
        flames = flamegraph::STYLE,
        script = include_str!("html/script.js"),
        flame_script = flamegraph::SCRIPT,
        version = env!("CARGO_PKG_VERSION"),
        file = name(&file),
    )
}

/// A word that nobody who wrote a trace can have known: only scripts that say it run.
fn nonce() -> String {
    let word = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", word(), word())
}

/// A name out of a trace, cut to a length and escaped.
fn name(text: &str) -> String {
    markup(&fit_end(text, LONGEST, "…")).into_owned()
}

fn size(bytes: u64) -> String {
    format::bytes(bytes, Units::Auto)
}

/// `3 steps`, `1 step`.
fn plural(count: u64, what: &str) -> String {
    format!("{} {what}{}", format::grouped(count), if count == 1 { "" } else { "s" })
}

/// `width:12.34%`, of what may be larger than a number can count.
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 }
}

/// What a device is called: `cuda:0`.
fn short_name(device: &DeviceView) -> String {
    format!("cuda:{}", device.index)
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
fn header(model: &Model, command: &str) -> String {
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

fn contents(devices: &[DeviceView]) -> String {
    contents_of(devices.iter().map(|device| (device, format!("peak {}", size(device.peak_allocated_bytes)))))
}

/// Where each device is told, with a word on it.
fn contents_of<'d>(devices: impl Iterator<Item = (&'d DeviceView, String)>) -> String {
    let entry = |(device, held): (&DeviceView, String)| {
        format!("<li><a href=\"#device-{}\">{}</a> {held}</li>", device.index, short_name(device))
    };
    format!("<nav aria-label=\"devices\"><ul>{}</ul></nav>\n", devices.map(entry).collect::<String>())
}

/// What the reader should know of the trace itself.
fn notes(notes: &[Vec<String>]) -> String {
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
