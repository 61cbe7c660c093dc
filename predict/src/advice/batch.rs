//! How large a batch fits.

use memlab_trace::Category;
use memlab_trace::record::{Flags, Phase};
use rustc_hash::FxHashSet;

use crate::advice::block_lifetimes::{BlockLifetimes, Change};
use crate::advice::report::Batch;

/// Blocks of which it is not known whether they grow may have one part in so many of the peak.
const UNKNOWN_SHARE_DIVISOR: u64 = 50;

/// The largest batch, by that of the run, with which at most `limit` is allocated; `None`: the trace cannot say.
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

/// What the device has for the run's allocations: what other memory takes, and what is reserved beside them, as it was.
pub(crate) fn room(lifetimes: &BlockLifetimes<'_>) -> Option<u64> {
    let device = lifetimes.recording.model.device(lifetimes.recording.device)?;
    let others = device.peak_used_bytes.checked_sub(device.peak_reserved_bytes)?;
    let room = u128::from(device.total_bytes.checked_sub(others)?) * u128::from(lifetimes.peak().bytes);
    u64::try_from(room.checked_div(u128::from(device.peak_reserved_bytes))?).ok()
}

/// The blocks that are as large as the batch says: inputs, activations and temporaries of forward and backward. One that is as
/// large as a parameter of its layer may be made of that: its gradient, or a copy of it.
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
            // A forward that keeps its keys and values, and not a server's pool.
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
