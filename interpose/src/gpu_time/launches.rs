//! Which place made a call that gave the GPU work, by the call's correlation id.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::attribution::result::Attribution;

/// How many calls are remembered: ids count all calls of CUDA, and records can come a second later.
const CALLS: usize = 1 << 20;

/// One call: two words, written apart. The id in both says whether they belong together.
struct Entry {
    stack: AtomicU64,
    layer: AtomicU64,
}

/// The latest calls. Its memory is taken as it is first used.
static LATEST: LazyLock<Box<[Entry]>> = LazyLock::new(|| {
    let mut entries = Vec::new();
    entries.resize_with(CALLS, || Entry { stack: AtomicU64::new(0), layer: AtomicU64::new(0) });
    entries.into_boxed_slice()
});

/// Bits of a place's flags that are kept: its phase, and what else says where it counts.
const FLAG_BITS: u32 = 12;

/// Layers beyond this are not told apart from none.
const MAX_LAYER: u32 = 1 << (32 - FLAG_BITS);

/// Remembers the place of a call.
pub fn note(id: u32, place: Attribution) {
    let Some(entry) = LATEST.get(id as usize % CALLS) else { return };
    let layer = if place.layer < MAX_LAYER { place.layer } else { 0 };
    let flags = place.flags & ((1 << FLAG_BITS) - 1);
    entry.stack.store(u64::from(id) << 32 | u64::from(place.stack), Ordering::Relaxed);
    entry.layer.store(u64::from(id) << 32 | u64::from(layer << FLAG_BITS | flags), Ordering::Release);
}

/// The place of a call; all zeros if it is not known any more, or was memlab's own.
pub fn place(id: u32) -> Attribution {
    let Some(entry) = LATEST.get(id as usize % CALLS) else { return Attribution::default() };
    let (layer, stack) = (entry.layer.load(Ordering::Acquire), entry.stack.load(Ordering::Relaxed));
    if (layer >> 32) as u32 != id || (stack >> 32) as u32 != id {
        return Attribution::default();
    }
    let layer = layer as u32;
    Attribution { stack: stack as u32, layer: layer >> FLAG_BITS, flags: layer & ((1 << FLAG_BITS) - 1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_found_until_another_call_takes_its_entry() {
        let place_of = |id| {
            let place = place(id);
            (place.stack, place.layer, place.flags)
        };
        note(7, Attribution { stack: 3, layer: 9, flags: 5 });
        assert_eq!(place_of(7), (3, 9, 5));
        assert_eq!(place_of(8), (0, 0, 0), "nobody called");
        let later = 7 + CALLS as u32;
        note(later, Attribution { stack: 4, layer: 1, flags: 2 });
        assert_eq!((place_of(7), place_of(later)), ((0, 0, 0), (4, 1, 2)));
    }
}
