//! The verdict on a run: one line that a person can repeat to a colleague.

use memlab_trace::{Category, DeviceView, Model};
use memlab_units::format::{self, size};

use super::finding::Finding;
use super::words::Words;
use crate::category::category_names;

/// Minimum number of steps or iterations from which growth can be found.
const MIN_COMPARED: u64 = 5;

/// The most urgent finding in short, or the memory that the card has to spare.
///
/// `findings`: those on the model. `None`: the run has no device.
pub fn verdict(model: &Model, findings: &[Finding]) -> Option<Words> {
    let devices = model.devices();
    let Some(finding) = findings.first() else { return healthy(model, &devices) };
    Some(match findings.len() - 1 {
        0 => finding.short.clone(),
        1 => finding.short.clone().and("; 1 more finding"),
        more => finding.short.clone().and(format!("; {more} more findings")),
    })
}

/// `Fits with 2.10 GiB to spare (at most 5.90 GiB of 8.00 GiB in use); activations 58 % of memory in use at the peak; nothing
/// grows`, of the fullest device.
fn healthy(model: &Model, devices: &[DeviceView]) -> Option<Words> {
    let device =
        devices.iter().min_by_key(|device| (spare(device).map_or(u64::MAX, |(bytes, _)| bytes), device.index))?;
    if device.allocations == 0 {
        return Some(Words::strong("Nothing").and(" was allocated by PyTorch"));
    }
    let on = if devices.len() > 1 { format!(" on cuda:{}", device.index) } else { String::new() };
    let words = match spare(device) {
        Some((bytes, most)) => Words::strong("Fits").and(format!(" with {} to spare{on} ({most})", size(bytes))),
        None => Words::strong(size(device.peak_allocated_bytes)).and(format!(" allocated at the peak{on}")),
    };
    let held = model.categories(device.index).map(|view| (view.category, view.bytes_at_peak));
    let in_use = held.iter().fold(0_u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
    let blocks = held.iter().filter(|(category, bytes)| (*category as usize) < Category::Cached as usize && *bytes > 0);
    let words = match blocks.max_by_key(|(_, bytes)| *bytes) {
        Some((category, bytes)) => words.and(format!(
            "; {} {} of memory in use at the peak",
            category_names(*category).0,
            format::percent(*bytes, in_use)
        )),
        None => words,
    };
    let mut moments = devices.iter().filter_map(|device| model.growth_moments(device.index));
    let is_compared = moments.any(|moments| moments.to >= MIN_COMPARED);
    Some(words.and(if is_compared { "; nothing grows" } else { "; too few steps to find growth" }))
}

/// Bytes of the card, or of the limit, that the run never used, and in words its maximum; `None`: unknown.
fn spare(device: &DeviceView) -> Option<(u64, String)> {
    let of_card = (device.total_bytes > 0).then(|| {
        let (whole, most) = (device.total_bytes, device.peak_used_bytes);
        (whole.saturating_sub(most), format!("at most {} of {} in use", size(most), size(whole)))
    });
    let of_limit = device.limit_bytes.map(|limit| {
        let most = device.peak_reserved_bytes;
        (limit.saturating_sub(most), format!("at most {} reserved, of the limit of {}", size(most), size(limit)))
    });
    of_card.into_iter().chain(of_limit).min_by_key(|(bytes, _)| *bytes)
}
