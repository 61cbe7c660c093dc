//! The page of a whole run.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use memlab_trace::{DeviceView, HOST};

use super::super::names::ReportNames;
use super::super::text::notes_on;
use super::document::{DEVICES, contents_of, document, header, notes};
use super::{advice, device, tables, verdict};
use crate::advice::AdvisedTrace;
use crate::page::elements::size;
use memlab_base::text::short_command;

/// Writes the report of a trace as an HTML page.
///
/// # Errors
///
/// What `out` says.
pub fn write_html(out: &mut impl io::Write, path: &Path, run: &AdvisedTrace) -> io::Result<()> {
    out.write_all(page(path, run).as_bytes())
}

fn page(path: &Path, run: &AdvisedTrace) -> String {
    let loaded = &run.trace;
    let model = &loaded.model;
    let names = ReportNames::new(model);
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
    body += &advice::section(run.advice.as_ref());
    body += &notes(&notes_on(loaded));
    body += "</main>\n";
    document(path, &command, &body)
}

fn contents(devices: &[DeviceView]) -> String {
    contents_of(devices.iter().map(|device| (device, format!("peak {}", size(device.peak_allocated_bytes)))))
}
