//! The page of a whole run.

use std::io;
use std::path::Path;

use maud::html;
use memlab_trace::HOST;

use super::super::names::ReportNames;
use super::super::text::notes_on;
use super::document::{DEVICES, contents_of, document, header, host, left_out, notes};
use super::{advice, device, findings, tables};
use crate::advice::AdvisedTrace;
use crate::page::elements::{note, size};
use memlab_base::text::short_command;

/// Writes the report of a trace as an HTML page.
///
/// # Errors
///
/// Errors of `out`.
pub fn write_html(out: &mut impl io::Write, path: &Path, run: &AdvisedTrace) -> io::Result<()> {
    out.write_all(page(path, run).as_bytes())
}

fn page(path: &Path, run: &AdvisedTrace) -> String {
    let loaded = &run.trace;
    let model = &loaded.model;
    let names = ReportNames::new(model);
    let devices = model.devices();
    let shown_devices = &devices[..devices.len().min(DEVICES)];
    let command = model.header().map_or_else(String::new, |header| short_command(&header.command));

    let pinned = tables::driver(&names, HOST);
    let body = html! {
        (header(model, &command))
        main {
            (findings::section(&names))
            @if shown_devices.len() > 1 {
                (contents_of(shown_devices.iter().map(|device| (device, format!("peak {}", size(device.peak_allocated_bytes))))))
            }
            (advice::section(run.advice.as_ref()))
            @for device in shown_devices {
                @let peak_step = run.peak_step.as_ref().filter(|(index, _)| *index == device.index).map(|(_, step)| step);
                (device::section(&names, device, shown_devices.len(), peak_step))
            }
            @if devices.is_empty() { (note("No GPU memory was allocated.")) }
            (left_out(devices.len()))
            (host(&pinned))
            (notes(&notes_on(loaded)))
        }
    };
    document(path, &command, &body)
}
