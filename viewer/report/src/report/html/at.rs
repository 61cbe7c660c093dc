//! The page of one moment: its holders of memory, beside the timeline of the whole run.

use std::io;
use std::path::Path;

use maud::{Markup, html};
use memlab_trace::{Category, DeviceView, HOST, ResolvedSnapshot};

use super::super::names::ReportNames;
use super::super::text::notes_of;
use super::document::{DEVICES, contents_of, document, header, host, left_out, notes};
use super::findings::markup_words;
use super::{device, layers, memory, ooms, tables, timeline};
use crate::export::flamegraph::Measure;
use crate::page::elements::{self, note, short_name, size};
use memlab_base::findings::{Words, mostly};
use memlab_base::holdings::Holdings;
use memlab_base::moment::{LoadedMoment, NamedMoment};
use memlab_base::text::short_command;
use memlab_units::format;

/// Writes the holdings at a moment as an HTML page.
///
/// # Errors
///
/// Errors of `out`.
pub fn write_html_at(out: &mut impl io::Write, path: &Path, loaded: &LoadedMoment) -> io::Result<()> {
    out.write_all(page(path, loaded).as_bytes())
}

fn page(path: &Path, loaded: &LoadedMoment) -> String {
    let ResolvedSnapshot { model: moment, final_model: whole, .. } = &loaded.snapshot;
    let names = ReportNames::new(whole);
    let command = whole.header().map_or_else(String::new, |header| short_command(&header.command));
    // The name and size of a device may become known only later.
    let devices: Vec<(DeviceView, Holdings)> = moment
        .devices()
        .iter()
        .take(DEVICES)
        .map(|then| (whole.device(then.index).unwrap_or_default(), Holdings::at_moment(&loaded.snapshot, then.index)))
        .collect();
    let held = |held: &Holdings| format!("{} allocated", size(held.allocated_bytes));
    let body = html! {
        (header(whole, &command))
        main {
            (summary(&names, loaded, &devices))
            @if devices.len() > 1 { (contents_of(devices.iter().map(|(device, holdings)| (device, held(holdings))))) }
            @for (device, held) in &devices { (section(&names, loaded, device, held, devices.len())) }
            (left_out(moment.devices().len()))
            (host(&tables::driver_at(moment, HOST, "at the moment")))
            (notes(&notes_of(whole, &loaded.through.skipped, loaded.through.truncated)))
        }
    };
    document(path, &command, &body)
}

/// `at the end of step 3, 2.10 s`.
fn when(loaded: &LoadedMoment) -> String {
    let ResolvedSnapshot { model: moment, final_model: whole, .. } = &loaded.snapshot;
    let mut when = match loaded.moment {
        NamedMoment::Time(_) => format!("at {}", format::duration(moment.time())),
        named => format!("at {named}, {}", format::duration(moment.time())),
    };
    // The name of a step's end contains the step already.
    if !matches!(loaded.moment, NamedMoment::Step(_)) && whole.steps_ended() > 0 {
        when = format!("{when}, {}", format::step_during(moment.steps_ended(), whole.steps_ended()));
    }
    when
}

/// The moment, its holdings, and a reference to the page of the whole run.
fn summary(names: &ReportNames<'_>, loaded: &LoadedMoment, devices: &[(DeviceView, Holdings)]) -> Markup {
    let mut when = when(loaded);
    if let Some(first) = when.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    let words = Words::strong(when);
    let words =
        match devices.iter().max_by_key(|(device, held)| (held.allocated_bytes, std::cmp::Reverse(device.index))) {
            Some((device, held)) => describe(names, words, device, held, devices.len()),
            None => words.and(": no GPU memory was allocated by then."),
        };
    html! {
        section.verdict aria-label="the moment" {
            p { (markup_words(&words)) }
            p.next {
                "This page shows one moment. The page of the whole run (without a moment) has findings, growth, steps, and \
                 the peaks of lines and layers."
            }
        }
    }
}

fn describe(names: &ReportNames<'_>, words: Words, device: &DeviceView, held: &Holdings, devices: usize) -> Words {
    let name = short_name(device);
    let allocated = size(held.allocated_bytes);
    let mut words = if device.total_bytes > 0 {
        let (used, total) = (size(held.used_bytes), size(device.total_bytes));
        let share = format::percent(held.used_bytes, device.total_bytes);
        words
            .and(format!(": {used} of the {total} of {name} was in use ({share}), of which "))
            .and_strong(allocated)
            .and(" was allocated")
    } else {
        words.and(": ").and_strong(allocated).and(format!(" was allocated on {name}"))
    };
    if devices > 1 {
        words = words.and(format!(", the fullest of {devices} devices"));
    }
    let blocks = held.categories.iter().filter(|(category, _)| (*category as usize) < Category::Cached as usize);
    if let Some((category, bytes)) = blocks.max_by_key(|(_, bytes)| *bytes) {
        words = mostly(words, *category, *bytes);
    }
    words = words.and(".");
    match held.lines[names.model.scope()].iter().find(|line| line.line.is_some()) {
        Some(line) => {
            let place = names.line(line.line.as_ref()).replacen("  ", " ", 1);
            words.and(" The largest line is ").and_code(place).and(format!(" with {}.", size(line.bytes)))
        }
        None => words,
    }
}

fn section(
    names: &ReportNames<'_>,
    loaded: &LoadedMoment,
    device: &DeviceView,
    held: &Holdings,
    devices: usize,
) -> Markup {
    let (snapshot, index) = (&loaded.snapshot, device.index);
    let away = snapshot.host_bytes(index);
    let time = snapshot.model.time();
    let mark = timeline::Mark { time, text: format!("{} allocated {}", size(held.allocated_bytes), when(loaded)) };
    let blocks = snapshot.blocks.iter().filter(|(on, _)| *on == index).map(|(_, block)| block);
    let holders = layers::holders(names.model, index, blocks);
    let measured = (Measure::Live, "held at the moment");
    let parts = [
        ("Largest lines", tables::lines_at(names, device, devices, held)),
        ("Calls at the moment", device::flamegraphs(names, device, devices, &snapshot.model.calls(index), measured)),
        ("Layers", layers::tree_of(&holders, "then", devices)),
        ("Named ranges", tables::ranges_at(devices, held)),
        ("Driver memory outside PyTorch’s allocator", tables::driver_at(&snapshot.model, index, "at the moment")),
    ];
    let content = html! {
        (tiles(device, held, away))
        @if matches!(loaded.moment, NamedMoment::Oom(_)) { (ooms::at(names, device, time)) }
        h3 { "Memory over time" }
        (timeline::figure(names.model, device, Some(&mark)))
        (memory::figure_at(device, &held.categories, away))
        (fragmentation(snapshot, index))
        (device::titled(device, &parts))
    };
    device::around(device, &content)
}

fn tiles(device: &DeviceView, held: &Holdings, away: u64) -> Markup {
    let of_peak = match device.allocations {
        0 => String::new(),
        _ => format!("{} at the peak", size(device.peak_allocated_bytes)),
    };
    let of_total = match device.total_bytes {
        0 => String::new(),
        total => format!("{} of the device", format::percent(held.used_bytes, total)),
    };
    let mut tiles = vec![
        ("allocated", held.allocated_bytes, of_peak),
        ("reserved", held.reserved_bytes, format!("at most {}", size(device.peak_reserved_bytes))),
        ("in use", held.used_bytes, of_total),
    ];
    if away > 0 || device.peak_host_bytes > 0 {
        tiles.push(("in host memory", away, format!("at most {}", size(device.peak_host_bytes))));
    }
    elements::tiles(&tiles)
}

fn fragmentation(snapshot: &ResolvedSnapshot, device: i32) -> Markup {
    let map = snapshot.model.segments(device);
    if map.free_bytes == 0 {
        return Markup::default();
    }
    note(&format!(
        "Fragmentation: {} of {} reserved was cached, not allocated ({}); the largest free block was {}",
        size(map.free_bytes),
        size(map.reserved_bytes),
        format::percent(map.free_bytes, map.reserved_bytes),
        size(map.largest_free_bytes)
    ))
}
