//! What one would say if there were only a few sentences.

use std::fmt::Write as _;

use memlab_trace::{Category, DeviceView};

use super::super::sections::Names;
use super::{markup, name, plural, short_name, size};
use crate::format;
use crate::theme::category_names;

/// What is worth a sentence: a leak of a hundredth of the peak, a gap of a tenth of what is reserved.
const LEAK: u64 = 100;
const GAP: u64 = 10;

/// The verdict on the run: what happened, what the memory was, which line asked for most, and what looks wrong.
pub(super) fn verdict(names: &Names<'_>, devices: &[DeviceView]) -> String {
    let Some(device) = devices.iter().max_by_key(|device| {
        (device.peak_allocated_bytes.max(device.peak_used_bytes), std::cmp::Reverse(device.index))
    }) else {
        return String::new();
    };
    let leak = leak(names, device);
    let class = match (names.model.oom_count(), &leak) {
        (1.., _) => "verdict bad",
        (0, Some(_)) => "verdict warn",
        (0, None) => "verdict",
    };
    let sentences: Vec<String> = [Some(peak(names, device, devices.len())), line(names, device), leak, gap(device)]
        .into_iter()
        .flatten()
        .collect();
    format!(
        "<section class=\"{class}\" aria-label=\"verdict\">\n{}<p>{}</p>\n</section>\n",
        out_of_memory(names).map(|text| format!("<p>{text}</p>")).unwrap_or_default(),
        sentences.join(" ")
    )
}

fn out_of_memory(names: &Names<'_>) -> Option<String> {
    let ooms = names.model.ooms();
    let oom = ooms.first()?;
    let times = match names.model.oom_count() {
        0 | 1 => String::new(),
        times => format!("{}, first ", plural(times, "time")),
    };
    Some(format!(
        "<strong>Out of memory</strong> {times}after {}: <code>{}</code> asked for {} with {} allocated.",
        format::duration(oom.time),
        name(&names.line(oom.line.as_ref())),
        size(oom.requested_bytes),
        size(oom.allocated_bytes),
    ))
}

fn peak(names: &Names<'_>, device: &DeviceView, devices: usize) -> String {
    let mut text = String::new();
    if device.allocations == 0 {
        let _ = write!(
            text,
            "<strong>{}</strong> was in use on {} at most; PyTorch’s allocator handed out nothing.",
            size(device.peak_used_bytes),
            short_name(device)
        );
        return text;
    }
    let _ = write!(text, "At its peak <strong>{}</strong> was allocated", size(device.peak_allocated_bytes));
    if device.total_bytes > 0 {
        let _ = write!(
            text,
            " on {}, and {} of its {} in use ({})",
            short_name(device),
            size(device.used_bytes_at_peak),
            size(device.total_bytes),
            markup(&format::percent(device.used_bytes_at_peak, device.total_bytes))
        );
    } else {
        let _ = write!(text, " on {}", short_name(device));
    }
    if devices > 1 {
        let _ = write!(text, ", the fullest of {devices} devices");
    }
    let blocks = names
        .model
        .categories(device.index)
        .into_iter()
        .filter(|view| (view.category as usize) < Category::Cached as usize);
    if let Some(most) = blocks.max_by_key(|view| view.bytes_at_peak)
        && most.bytes_at_peak > 0
    {
        let _ = write!(
            text,
            "; most of it was <strong>{}</strong> ({}, {})",
            category_names(most.category).0,
            size(most.bytes_at_peak),
            markup(&format::percent(most.bytes_at_peak, device.peak_allocated_bytes))
        );
    }
    text + "."
}

fn line(names: &Names<'_>, device: &DeviceView) -> Option<String> {
    let lines = names.model.lines(device.index);
    let line = lines.iter().find(|line| line.line.is_some() && line.live_bytes_at_peak > 0)?;
    Some(format!(
        "The line that held most is <code>{}</code> with {}.",
        name(&names.line(line.line.as_ref())),
        size(line.live_bytes_at_peak)
    ))
}

fn leak(names: &Names<'_>, device: &DeviceView) -> Option<String> {
    let growth = names.model.growth(device.index);
    let most = growth.first()?;
    let more = most.to_bytes - most.from_bytes;
    if more < device.peak_allocated_bytes / LEAK || most.to_step - most.from_step < 2 {
        return None;
    }
    Some(format!(
        "<strong>It grows</strong>: <code>{}</code> held {} more at the end of the last step than after warm-up, about {} a step.",
        name(&names.line(most.line.as_ref())),
        size(more),
        size(most.bytes_per_step.max(0.0) as u64)
    ))
}

fn gap(device: &DeviceView) -> Option<String> {
    let idle = device.reserved_bytes_at_peak.saturating_sub(device.peak_allocated_bytes);
    (device.allocations > 0 && idle > device.reserved_bytes_at_peak / GAP).then(|| {
        format!(
            "PyTorch had {} reserved that it had not handed out ({} of what it had reserved).",
            size(idle),
            markup(&format::percent(idle, device.reserved_bytes_at_peak))
        )
    })
}
