//! Memory of an earlier forward that is allocated a second time: names that are still set, or graphs that wait for one
//! backward.

use memlab_trace::holders::{Holder, NodeKind};
use memlab_trace::{DeviceView, Model};
use memlab_units::format::size;

use super::finding::{Finding, Kind, on};
use super::holder::holders;
use super::leak::Growing;
use super::words::Words;
use crate::file_names::FileNames;

/// Memory below one part of this number of the peak is not worth a finding.
const MIN_DIVISOR: u64 = 10;
/// A scalar has one block of this size.
const SCALAR_BYTES: u64 = 512;

/// Finding on the memory of earlier forwards near the peak. Memory of the findings on growth is left out.
pub(super) fn earlier_forwards(
    model: &Model,
    device: &DeviceView,
    several: bool,
    growing: &[Growing],
) -> Option<Finding> {
    let found = model.earlier_forwards(device.index)?;
    let peak = device.peak_allocated_bytes;
    let is_near_peak = found.top_bytes >= peak / 2;
    let is_told = growing.iter().flat_map(|growing| &growing.stacks).any(|stack| found.stacks.contains(stack));
    if found.bytes < peak / MIN_DIVISOR || !is_near_peak || is_told {
        return None;
    }
    let held = model.holders_of_stacks(found.search, device.index, &found.stacks)?;
    let holder = held.explanation.holders.first().filter(|holder| is_it(holder, found.bytes))?;
    let is_used = found.used_bytes >= found.bytes / 2;
    let next = if !is_used {
        // A container collects what is wanted later.
        if !holder.names_tensors() {
            return None;
        }
        format!("Delete what the next forward replaces before it begins: {}", holder.deletion())
    } else if holds_losses(holder) {
        "Call backward for each loss where it is computed, instead of for their sum: then the graph of one forward is alive \
         at a time."
            .to_owned()
    } else {
        // The loss needs the results of several forwards.
        return None;
    };
    let files = FileNames::of(model);
    let holders = holders(&held, &files);
    let mut what = Words::strong(Kind::EarlierForwards.title()).and(format!(
        "{}: {} of earlier forwards were still allocated while a forward allocated the same again.",
        on(device, several),
        size(found.bytes)
    ));
    let mut short =
        Words::strong(Kind::EarlierForwards.title()).and(format!("{}: {}", on(device, several), size(found.bytes)));
    if let Some(holder) = holders.first() {
        short = short.and(" kept by ").join(&holder.short);
        what = what.and(" Kept by ").join(&holder.what);
        what = what.and(format!(". Its release would have freed {}.", size(holder.releases)));
    }
    Some(Finding {
        kind: Kind::EarlierForwards,
        device: device.index,
        line: None,
        bytes: found.bytes,
        short,
        what,
        next,
        holders,
    })
}

/// True if the holder has names, and keeps little more than these bytes.
fn is_it(holder: &Holder, bytes: u64) -> bool {
    let is_object = holder.object().is_some_and(|object| {
        !matches!(object.kind, NodeKind::Native | NodeKind::Garbage | NodeKind::Exception | NodeKind::Traceback)
    });
    is_object && holder.bytes >= bytes / 2 && holder.releases / 3 <= bytes / 2
}

/// True if all tensors that it holds itself are scalars: the rest is their graphs.
fn holds_losses(holder: &Holder) -> bool {
    holder.releases.saturating_sub(holder.for_backward) <= SCALAR_BYTES * u64::from(holder.tensors)
}
