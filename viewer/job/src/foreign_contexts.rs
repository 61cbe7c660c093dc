//! Finds contexts of ranks on other ranks' devices.
//!
//! Causes: a rank that never called `torch.cuda.set_device`, or a tensor that landed on the wrong device.
//!
//! Two sources show such a context. The driver lists the processes on a device to its owner. The trace of the stray rank has
//! a device that it hardly uses. Two ranks share a device if host and PCI bus id are equal.

use std::collections::BTreeMap;
use std::sync::Arc;

use memlab_trace::Line;

use crate::summary::{DeviceSummary, RankSummary};

/// A device is hardly used if its allocations are at most 1/N of those on the rank's own device.
const UNUSED_SHARE_DIVISOR: u64 = 100;

/// A context of a rank on another device than its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignContext {
    /// The rank with the context, as index in [`Job::ranks`](crate::Job::ranks).
    pub at: usize,
    /// A rank that owns the device; `None`: no rank does.
    pub owner: Option<usize>,
    /// The device, in the numbering of its owner, or without an owner in that of the stray rank.
    pub device: i32,
    /// Largest bytes that the rank was seen to hold there.
    pub bytes: u64,
    /// The line that allocated most there, if any.
    pub line: Option<Arc<Line>>,
}

/// A device of a host.
type Card<'r> = (&'r str, String);

fn card<'r>(rank: &'r RankSummary, device: &DeviceSummary) -> Card<'r> {
    let view = &device.view;
    (&rank.header.host, view.bus_id.clone().unwrap_or_else(|| format!("#{}", view.index)))
}

/// Returns all foreign contexts, the largest first.
pub(crate) fn foreign_contexts(ranks: &[RankSummary]) -> Vec<ForeignContext> {
    let mut owners: BTreeMap<Card<'_>, usize> = BTreeMap::new();
    let mut pids: BTreeMap<(&str, u32), usize> = BTreeMap::new();
    for (at, rank) in ranks.iter().enumerate() {
        pids.insert((&rank.header.host, rank.header.pid), at);
        if let Some(device) = rank.own_device() {
            owners.entry(card(rank, device)).or_insert(at);
        }
    }
    let own = |at: usize| ranks[at].own_device().map(|device| card(&ranks[at], device));
    let mut found: BTreeMap<(usize, Card<'_>), ForeignContext> = BTreeMap::new();
    for rank in ranks {
        let Some(device) = rank.own_device() else { continue };
        let place = card(rank, device);
        for (pid, bytes) in &device.view.others {
            let Some(at) = pids.get(&(&rank.header.host, *pid)).copied() else { continue };
            if own(at).is_some_and(|own| own != place) {
                let (owner, device) = (owners.get(&place).copied(), device.view.index);
                let known = ForeignContext { at, owner, device, bytes: 0, line: None };
                let context = found.entry((at, place.clone())).or_insert(known);
                context.bytes = context.bytes.max(*bytes);
            }
        }
    }
    for (at, rank) in ranks.iter().enumerate() {
        let Some(own) = rank.own_device() else { continue };
        for device in rank.devices.iter().filter(|device| device.view.index != own.view.index) {
            let view = &device.view;
            // Without figures per process, the context bytes belong to all processes together.
            let bytes =
                if view.process_is_known { device.context_bytes } else { 0 }.saturating_add(view.peak_reserved_bytes);
            if view.peak_allocated_bytes > own.view.peak_allocated_bytes / UNUSED_SHARE_DIVISOR || bytes == 0 {
                continue;
            }
            let place = card(rank, device);
            let owner = owners.get(&place).copied();
            let known = ForeignContext { at, owner, device: view.index, bytes, line: None };
            let context = found.entry((at, place)).or_insert(known);
            context.line = device.busiest_line.clone();
        }
    }
    let mut contexts: Vec<ForeignContext> = found.into_values().collect();
    contexts.sort_by_key(|context| (std::cmp::Reverse(context.bytes), context.at, context.device));
    contexts
}
