//! Limits on available memory: a full device, spilling to the host, other processes, and memory that the allocator
//! retains.

use memlab_trace::record::SearchReason;
use memlab_trace::{Category, DeviceView, Model, OomView};
use memlab_units::format::{self, size};

use super::advice::{self, GrowingLine};
use super::finding::{Finding, Kind, is_significant, on, processes};
use super::holder::holders;
use super::leak;
use super::words::Words;
use crate::file_names::FileNames;

/// Reports fragmentation from a fifth of the reserved bytes.
const MIN_FRAGMENTATION_DIVISOR: u64 = 5;

/// Reports other processes from a twentieth of the device.
const MIN_OTHERS_DIVISOR: u64 = 20;

/// Finding on the first out-of-memory error of a device.
pub fn out_of_memory(model: &Model, device: &DeviceView, several: bool) -> Option<Finding> {
    let ooms: Vec<OomView> = model.ooms().into_iter().filter(|oom| oom.device == device.index).collect();
    let oom = ooms.first()?;
    let files = FileNames::of(model);
    let times = if ooms.len() > 1 { format!("{} times, first ", model.oom_count()) } else { String::new() };
    let mut what = Words::strong(Kind::OutOfMemory.title()).and(format!(
        "{} {times}after {}: ",
        on(device, several),
        format::duration(oom.time)
    ));
    what = match &oom.line {
        Some(line) => what.and_code(format!("{} {}", files.place(line), line.function)),
        None => what.and("a library"),
    };
    what = what.and(format!(" requested {} with {} allocated", size(oom.requested_bytes), size(oom.allocated_bytes)));
    what = match (oom.limit_bytes, oom.total_bytes) {
        (Some(limit), _) => what.and(format!(" under a limit of {}.", size(limit))),
        (None, 1..) => what.and(format!(" on a device of {}.", size(oom.total_bytes))),
        (None, 0) => what.and("."),
    };
    let grows = leak::growing_line(model, device);
    let advice = advice::advice(model, oom, grows.as_ref());
    let next = advice
        .into_iter()
        .next()
        .unwrap_or_else(|| "Use a smaller batch, a smaller model, or a larger device.".to_owned());
    let held = model.holders_at(device.index, Some(SearchReason::OutOfMemory));
    let holders = held.as_ref().map(|held| holders(held, &files)).unwrap_or_default();
    let avoidable = holders.iter().find(|holder| holder.is_avoidable && is_significant(holder.releases, device));
    let next = match avoidable {
        Some(holder) => {
            let when = held.as_ref().filter(|_| ooms.len() > 1).map(|held| format::duration(held.time));
            what = match when {
                Some(time) => what.and(format!(" At the error after {time}, it was kept by ")),
                None => what.and(" Kept by "),
            };
            what = what.join(&holder.what);
            what = what.and(format!(". Its release would have freed {}.", size(holder.releases)));
            holder.cure.clone()
        }
        None => next,
    };
    let short = Words::strong(Kind::OutOfMemory.title()).and(format!("{}: ", on(device, several)));
    let short = match &oom.line {
        Some(line) => short.and_code(files.place(line)),
        None => short.and("a library"),
    };
    let short = short.and(format!(" requested {}", size(oom.requested_bytes)));
    let short = match avoidable {
        Some(holder) => short.and("; ").join(&holder.short).and(format!(" keeps {}", size(holder.releases))),
        None => short.and(format!(" with {} allocated", size(oom.allocated_bytes))),
    };
    let (kind, line, bytes) = (Kind::OutOfMemory, oom.line.clone(), oom.requested_bytes);
    Some(Finding { kind, device: device.index, line, bytes, short, what, next, holders })
}

/// Line that grows most, with its growth per step, for advice.
pub fn grows(model: &Model, device: &DeviceView) -> Option<GrowingLine> {
    leak::growing_line(model, device)
}

/// Finding on memory that was on the host, because it exceeded a limit or the device.
pub(super) fn spilling(device: &DeviceView, several: bool) -> Option<Finding> {
    let bytes = device.peak_host_bytes;
    if !device.spills || !is_significant(bytes, device) {
        return None;
    }
    let most = device.limit_bytes.map_or_else(
        || format!("the {} of the device", size(device.total_bytes)),
        |limit| format!("the limit of {}", size(limit)),
    );
    let brief = format!("{}: up to {} in host memory, beyond {most}", on(device, several), size(bytes));
    let end = if device.host_bytes == 0 { ", none at the end" } else { "" };
    let limit = device.limit_bytes.map(|limit| size(limit.saturating_add(bytes)));
    let raise = limit.map_or_else(String::new, |limit| format!(" Or raise the limit to {limit} or more."));
    let next = format!("`memlab run --fit` makes room from the first step of a training on.{raise}");
    let what = Words::strong(Kind::Spilling.title())
        .and(format!("{brief}{end}; kernels access it over the bus, many times slower."));
    let short = Words::strong(Kind::Spilling.title()).and(brief);
    Some(Finding {
        kind: Kind::Spilling,
        device: device.index,
        line: None,
        bytes,
        short,
        what,
        next,
        holders: Vec::new(),
    })
}

/// Finding on memory of other processes at the peak. After an out-of-memory error, it covers small amounts too.
pub(super) fn others(model: &Model, device: &DeviceView, several: bool, is_out_of_memory: bool) -> Option<Finding> {
    let seen = device.others.iter().fold(0_u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
    let at_peak = model.categories(device.index)[Category::OtherProcesses as usize].bytes_at_peak;
    let bytes = at_peak.max(if device.allocations == 0 { seen } else { 0 });
    let least = if is_out_of_memory { device.total_bytes / 100 } else { device.total_bytes / MIN_OTHERS_DIVISOR };
    if bytes == 0 || bytes < least {
        return None;
    }
    let mut what = Words::strong(Kind::OtherProcesses.title()).and(format!(
        "{} held {} of the device",
        on(device, several),
        size(bytes)
    ));
    if device.total_bytes > 0 {
        what = what.and(format!(" ({})", format::percent(bytes, device.total_bytes)));
    }
    let short = what.clone();
    if !device.others.is_empty() {
        what = what.and(": ").and_strong(processes(&device.others));
    }
    let next = "End them, or use another device (CUDA_VISIBLE_DEVICES); nvidia-smi names them. A rank without \
         torch.cuda.set_device shows up like this on device 0."
        .to_owned();
    Some(Finding {
        kind: Kind::OtherProcesses,
        device: device.index,
        line: None,
        bytes,
        short,
        what: what.and("."),
        next,
        holders: Vec::new(),
    })
}

/// Finding on unallocated reserved memory at the peak, outside private pools of CUDA graphs.
pub(super) fn fragmentation(model: &Model, device: &DeviceView, several: bool) -> Option<Finding> {
    let reserved = device.reserved_bytes_at_peak.saturating_sub(device.private_reserved_bytes_at_peak);
    let allocated = device.peak_allocated_bytes.saturating_sub(device.private_allocated_bytes_at_peak);
    let bytes = reserved.saturating_sub(allocated);
    let is_much = bytes > reserved / MIN_FRAGMENTATION_DIVISOR && bytes >= device.total_bytes / 100;
    if device.allocations == 0 || !is_much || !is_significant(bytes, device) {
        return None;
    }
    let what = Words::strong(Kind::Fragmentation.title()).and(format!(
        "{}: at the peak {} was reserved but not allocated, {} of reserved{}.",
        on(device, several),
        size(bytes),
        format::percent(bytes, reserved),
        if device.private_reserved_bytes_at_peak > 0 { " outside CUDA graphs' pools" } else { "" }
    ));
    let next = if model.has_expandable_segments(device.index) {
        "Use fewer different sizes (padded batches, fixed shapes), or empty the cache between phases of the program: \
         `torch.cuda.empty_cache()`"
    } else {
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True makes it usable for other sizes; fewer different shapes also help."
    };
    let short = Words::strong(Kind::Fragmentation.title()).and(format!(
        "{}: {} reserved but not allocated at the peak, {} of reserved",
        on(device, several),
        size(bytes),
        format::percent(bytes, reserved)
    ));
    Some(Finding {
        kind: Kind::Fragmentation,
        device: device.index,
        line: None,
        bytes,
        short,
        what,
        next: next.to_owned(),
        holders: Vec::new(),
    })
}
