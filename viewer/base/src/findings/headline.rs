//! Memory at the peak, in two sentences.

use memlab_trace::{Category, DeviceView, Model};
use memlab_units::format::{self, size};

use super::words::Words;
use crate::category::category_names;
use crate::file_names::FileNames;

/// Bytes allocated at the peak of the fullest device, with their category and line; `None` without a device.
pub fn headline(model: &Model) -> Option<Words> {
    let devices = model.devices();
    let device = fullest(&devices)?;
    let words = peak(model, device, devices.len());
    Some(match line(model, device) {
        Some((place, bytes)) => {
            words.and(" The largest line is ").and_code(place).and(format!(" with {}.", size(bytes)))
        }
        None => words,
    })
}

/// The device with the most bytes at its peak; `None` without a device.
pub fn fullest(devices: &[DeviceView]) -> Option<&DeviceView> {
    let bytes = |device: &&DeviceView| device.peak_allocated_bytes.max(device.peak_used_bytes);
    devices.iter().max_by_key(|device| (bytes(device), std::cmp::Reverse(device.index)))
}

fn peak(model: &Model, device: &DeviceView, devices: usize) -> Words {
    let name = format!("cuda:{}", device.index);
    if device.allocations == 0 && device.peak_used_bytes == 0 {
        return Words::strong("Nothing").and(format!(" was allocated on {name}."));
    }
    if device.allocations == 0 {
        return Words::strong(size(device.peak_used_bytes))
            .and(format!(" was the most in use on {name}; PyTorch allocated nothing."));
    }
    let (allocated, total) = (size(device.peak_allocated_bytes), device.total_bytes);
    let mut words = if total > 0 {
        let (used, share) = (device.used_bytes_at_peak, format::percent(device.used_bytes_at_peak, total));
        Words::default()
            .and(format!(
                "At the peak, {} of the {} of {name} was in use ({share}), of which ",
                size(used),
                size(total)
            ))
            .and_strong(allocated)
            .and(" was allocated")
    } else {
        Words::default().and("At the peak, ").and_strong(allocated).and(format!(" was allocated on {name}"))
    };
    if devices > 1 {
        words = words.and(format!(", the fullest of {devices} devices"));
    }
    let blocks =
        model.categories(device.index).into_iter().filter(|view| (view.category as usize) < Category::Cached as usize);
    if let Some(most) = blocks.max_by_key(|view| view.bytes_at_peak)
        && most.bytes_at_peak > 0
    {
        words = mostly(words, most.category, most.bytes_at_peak);
    }
    words.and(".")
}

/// Adds the category that holds most of the allocated bytes.
pub fn mostly(words: Words, category: Category, bytes: u64) -> Words {
    words.and("; largest category: ").and_strong(category_names(category).0).and(format!(" ({})", size(bytes)))
}

fn line(model: &Model, device: &DeviceView) -> Option<(String, u64)> {
    let files = FileNames::of(model);
    let lines = model.lines(device.index);
    let view = lines.iter().find(|line| line.line.is_some() && line.live_bytes_at_peak > 0)?;
    let line = view.line.as_ref()?;
    Some((format!("{} {}", files.place(line), line.function), view.live_bytes_at_peak))
}
