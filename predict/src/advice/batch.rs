//! Estimates the largest batch that fits.

use memlab_trace::record::{Flags, Phase};
use memlab_trace::{Category, Framework};
use rustc_hash::FxHashSet;

use crate::advice::block_lifetimes::{BlockLifetimes, Change};
use crate::advice::names;
use crate::advice::report::Batch;
use crate::advice::rules::leak::Leak;

/// Blocks that may or may not grow with the batch may hold at most 1/N of the peak.
const UNKNOWN_SHARE_DIVISOR: u64 = 50;

/// Returns the largest batch, relative to that of the run, that allocates at most `limit` bytes.
///
/// `None`: the trace is not sufficient.
pub(crate) fn fitting(lifetimes: &BlockLifetimes<'_>, limit: u64) -> Option<Batch> {
    let growing = growing(lifetimes)?;
    let peak = |percent: u64| {
        let resized = growing.iter().map(|id| (*id, lifetimes.size(*id) * percent / 100)).collect();
        lifetimes.peak_with(&Change { resized, ..Change::default() }).bytes
    };
    let (mut fits, mut too_large) = (0, Batch::MAX_PERCENT + 1);
    while too_large - fits > 1 {
        let middle = fits + (too_large - fits) / 2;
        if peak(middle) <= limit { fits = middle } else { too_large = middle }
    }
    (fits > 0).then(|| Batch { percent: fits, bytes_after: peak(fits), limit_bytes: limit })
}

/// Returns the reason for which no batch is tried: the peak of the run is not that of one batch.
pub(crate) fn unknown(lifetimes: &BlockLifetimes<'_>, leaks: &[Leak]) -> Option<&'static str> {
    let recording = lifetimes.recording;
    let peak = lifetimes.peak();
    let collected = (0..lifetimes.spans.len() as u32).filter(|id| {
        lifetimes.is_live(*id, peak.event) && recording.model.collects_logits(recording.allocations[*id as usize].stack)
    });
    if recording.model.ooms().iter().any(|oom| oom.device == recording.device) {
        Some("the run ran out of memory, and the peak of a whole step is not in the recording")
    } else if collected.map(|id| lifetimes.size(id)).sum::<u64>() > peak.bytes / UNKNOWN_SHARE_DIVISOR {
        Some("the results that the evaluation collects grow with its length")
    } else if !leaks.is_empty() {
        Some("memory grows over the run, and no batch fits for long")
    } else {
        None
    }
}

/// Returns the framework that runs the program at the peak.
pub(crate) fn framework(lifetimes: &BlockLifetimes<'_>) -> Option<Framework> {
    let event = lifetimes.peak().event;
    let is_of_pass = |id: &u32| {
        let category = lifetimes.recording.allocations[*id as usize].category;
        matches!(category, Category::Activation | Category::Temporary | Category::Input)
            && lifetimes.is_live(*id, event)
    };
    names::framework(lifetimes, (0..lifetimes.spans.len() as u32).filter(is_of_pass))
}

/// Returns the device memory available to the run's allocations.
///
/// Assumes that other memory, and the ratio of reserved to allocated bytes, stay as recorded.
pub(crate) fn room(lifetimes: &BlockLifetimes<'_>) -> Option<u64> {
    let device = lifetimes.recording.model.device(lifetimes.recording.device)?;
    let others = device.peak_used_bytes.checked_sub(device.peak_reserved_bytes)?;
    let room = u128::from(device.total_bytes.checked_sub(others)?) * u128::from(lifetimes.peak().bytes);
    u64::try_from(room.checked_div(u128::from(device.peak_reserved_bytes))?).ok()
}

/// Returns the blocks whose size depends on the batch: inputs, activations and temporaries of forward and backward.
///
/// A block as large as a parameter of its layer may be the gradient or a copy of that parameter. Returns `None` if such
/// blocks hold too much of the peak.
fn growing(lifetimes: &BlockLifetimes<'_>) -> Option<Vec<u32>> {
    let recording = lifetimes.recording;
    let place = |allocation| {
        let layer = recording.layer(allocation);
        (layer.root, layer.name)
    };
    let parameters = recording.allocations.iter().filter(|allocation| allocation.category == Category::Parameter);
    let parameters: FxHashSet<_> = parameters.map(|parameter| (place(parameter), parameter.size)).collect();
    let peak = lifetimes.peak();
    let (mut growing, mut unknown) = (Vec::new(), 0);
    for (id, allocation) in (0..).zip(&recording.allocations) {
        let is_of_batch = match allocation.category {
            Category::Activation | Category::Input | Category::Temporary => true,
            // A forward that keeps its keys and values, not a server's pool.
            Category::KvCache => allocation.flags.phase() == Phase::Forward,
            _ => false,
        };
        let is_of_batch =
            is_of_batch && allocation.flags.phase() != Phase::Optimizer && !allocation.flags.has(Flags::WORKSPACE);
        if !is_of_batch {
            continue;
        }
        let sizes = [allocation.size, allocation.size / 2, allocation.size * 2];
        let layer = place(allocation);
        if sizes.iter().any(|size| parameters.contains(&(layer.clone(), *size))) {
            unknown += if lifetimes.is_live(id, peak.event) { allocation.size } else { 0 };
        } else {
            growing.push(id);
        }
    }
    (!growing.is_empty() && unknown <= peak.bytes / UNKNOWN_SHARE_DIVISOR).then_some(growing)
}
