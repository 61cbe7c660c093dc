//! The page of a whole run.

use std::io;
use std::path::Path;

use maud::html;
use memlab_trace::{HOST, Loaded};

use super::super::names::ReportNames;
use super::super::text::notes_on;
use super::document::{DEVICES, contents_of, document, header, host, left_out, notes};
use super::{advice, device, tables, verdict};
use crate::advice::on_report;
use crate::page::elements::{note, size};
use memlab_base::text::short_command;

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
    let names = ReportNames::new(model);
    let devices = model.devices();
    let told = &devices[..devices.len().min(DEVICES)];
    let command = model.header().map_or_else(String::new, |header| short_command(&header.command));

    let pinned = tables::driver(&names, HOST);
    let body = html! {
        (header(model, &command))
        main {
            (verdict::verdict(&names))
            @if told.len() > 1 {
                (contents_of(told.iter().map(|device| (device, format!("peak {}", size(device.peak_allocated_bytes))))))
            }
            @for device in told { (device::section(&names, device, told.len())) }
            @if devices.is_empty() { (note("No GPU memory was allocated.")) }
            (left_out(devices.len()))
            (host(&pinned))
            (advice::section(on_report(path, loaded).as_ref()))
            (notes(&notes_on(loaded)))
        }
    };
    document(path, &command, &body)
}
