//! Place and time of each call that submitted GPU work, by the call's correlation id.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::attribution::result::Attribution;

/// Number of calls kept.
///
/// Ids count all calls of CUDA, and records can come a second later. With more calls, entries would be evicted from the
/// processor's caches before they are used again.
const REMEMBERED_CALLS: usize = 1 << 18;

/// A call, in words that are written one after the other.
///
/// The id in the first and the last word reveals whether they belong together.
struct Entry {
    stack: AtomicU64,
    time: AtomicU64,
    step: AtomicU64,
    layer: AtomicU64,
}

/// The latest calls.
///
/// The system provides this memory page by page as it is used.
static LATEST_CALLS: LazyLock<Box<[Entry]>> = LazyLock::new(|| {
    // SAFETY: an entry of zeros is valid.
    unsafe { Box::new_zeroed_slice(REMEMBERED_CALLS).assume_init() }
});

/// Flag bits kept of a place: all that exist.
const FLAG_BITS: u32 = 13;

/// Layers from this on are recorded as no layer.
const MAX_LAYER: u32 = 1 << (32 - FLAG_BITS);

/// A call that submitted GPU work.
#[derive(Clone, Copy, Default)]
pub struct Launch {
    pub place: Attribution,
    /// Start of the call by [`clock`](interpose_base::clock); 0: unknown.
    pub time: u64,
    /// Number of optimizer steps that had ended by then.
    pub step: u64,
}

/// Stores a call.
pub fn note(id: u32, launch: Launch) {
    let Some(entry) = LATEST_CALLS.get(id as usize % REMEMBERED_CALLS) else { return };
    let Launch { place, time, step } = launch;
    let layer = if place.layer < MAX_LAYER { place.layer } else { 0 };
    let flags = place.flags & ((1 << FLAG_BITS) - 1);
    entry.stack.store(u64::from(id) << 32 | u64::from(place.stack), Ordering::Relaxed);
    entry.time.store(time, Ordering::Release);
    entry.step.store(step, Ordering::Release);
    entry.layer.store(u64::from(id) << 32 | u64::from(layer << FLAG_BITS | flags), Ordering::Release);
}

/// Returns a call; all zeros if it has been overwritten, or was memlab's.
pub fn launch(id: u32) -> Launch {
    let Some(entry) = LATEST_CALLS.get(id as usize % REMEMBERED_CALLS) else { return Launch::default() };
    let layer = entry.layer.load(Ordering::Acquire);
    let (step, time) = (entry.step.load(Ordering::Acquire), entry.time.load(Ordering::Acquire));
    let stack = entry.stack.load(Ordering::Relaxed);
    if (layer >> 32) as u32 != id || (stack >> 32) as u32 != id {
        return Launch::default();
    }
    let layer = layer as u32;
    let flags = layer & ((1 << FLAG_BITS) - 1);
    Launch { place: Attribution { stack: stack as u32, layer: layer >> FLAG_BITS, flags }, time, step }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_found_until_another_takes_its_entry() {
        let found = |id| {
            let Launch { place, time, step } = launch(id);
            (place.stack, place.layer, place.flags, time + step)
        };
        let at = |stack, layer, flags, time| Launch { place: Attribution { stack, layer, flags }, time, step: 1 };
        note(7, at(3, 9, 5, 100));
        assert_eq!(found(7), (3, 9, 5, 101));
        assert_eq!(found(8), (0, 0, 0, 0), "nobody called");
        let later = 7 + REMEMBERED_CALLS as u32;
        note(later, at(4, 1, 2, 200));
        assert_eq!((found(7), found(later)), ((0, 0, 0, 0), (4, 1, 2, 201)));
    }
}
