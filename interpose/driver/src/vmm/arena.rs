//! Pinned host memory for bytes that have left the devices.
//!
//! It grows as needed and is kept for reuse: getting memory from the system takes longer than copying into it.

mod region;
mod span;

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use interpose_base::locks;
pub use region::PendingRegions;
use region::{HUGE_PAGE, Region};
pub use span::Span;

#[derive(Default)]
pub struct Arena {
    regions: Vec<Arc<Region>>,
    /// Free pieces: address → bytes.
    ///
    /// Adjacent pieces of a region are merged. Includes regions that are still being pinned.
    free: BTreeMap<usize, u64>,
}

/// Locked after [`super::movable_memory::MOVABLE_MEMORY`], or alone.
pub static ARENA: Mutex<Arena> = Mutex::new(Arena::new());

/// Called in a forked child, which does not have the pages.
pub fn reset_in_child() {
    locks::reset_in_child(&ARENA, Arena::new());
}

impl Arena {
    pub const fn new() -> Self {
        Self { regions: Vec::new(), free: BTreeMap::new() }
    }

    /// Bytes that are pinned or being pinned.
    pub fn bytes(&self) -> u64 {
        self.regions.iter().map(|region| region.bytes).sum()
    }

    /// Bytes among these that the system has not yet provided.
    pub fn unmade_bytes(&self) -> u64 {
        self.regions.iter().filter(|region| region.is_being_made()).map(|region| region.bytes).sum()
    }

    pub fn free_bytes(&self) -> u64 {
        self.free.values().sum()
    }

    /// Grows until `bytes` are free.
    ///
    /// They can be taken at once; [`pending`](Self::pending) returns the regions still being pinned.
    ///
    /// # Errors
    ///
    /// If the system provides neither addresses nor a thread.
    pub fn grow(&mut self, bytes: u64, context: u64) -> Result<(), String> {
        self.drop_failed();
        let missing = bytes.saturating_sub(self.free_bytes()).next_multiple_of(HUGE_PAGE);
        if missing > 0 {
            for region in region::begin(missing, context)? {
                self.free.insert(region.address, region.bytes);
                self.regions.push(region);
            }
        }
        Ok(())
    }

    /// Regions that are still being pinned.
    pub fn pending(&self) -> PendingRegions {
        PendingRegions(self.regions.iter().filter(|region| !region.is_pinned()).cloned().collect())
    }

    /// Forgets regions that could not be pinned.
    ///
    /// A context must be current.
    pub fn drop_failed(&mut self) {
        self.retain(|region| !region.has_failed());
    }

    /// Takes pieces that add up to `bytes`, which [`grow`](Self::grow) has made available.
    pub fn take(&mut self, bytes: u64) -> Option<Vec<Span>> {
        if self.free_bytes() < bytes {
            return None;
        }
        let mut spans = Vec::new();
        let mut missing = bytes;
        while missing > 0 {
            let (address, free) = self.free.pop_first()?;
            let taken = free.min(missing);
            if taken < free {
                self.free.insert(address + taken as usize, free - taken);
            }
            spans.push(Span { address, bytes: taken });
            missing -= taken;
        }
        Some(spans)
    }

    pub fn give_back(&mut self, spans: &[Span]) {
        for &Span { mut address, mut bytes } in spans {
            if let Some((&before, &length)) = self.free.range(..address).next_back()
                && before + length as usize == address
            {
                self.free.remove(&before);
                (address, bytes) = (before, bytes + length);
            }
            if let Some(length) = self.free.remove(&(address + bytes as usize)) {
                bytes += length;
            }
            self.free.insert(address, bytes);
        }
    }

    /// Releases regions without taken spans to the system.
    ///
    /// A context must be current.
    pub fn shrink(&mut self) {
        self.retain(Region::is_being_made);
    }

    /// Keeps regions with taken spans, and those that are `wanted`.
    fn retain(&mut self, wanted: impl Fn(&Region) -> bool) {
        let free = &mut self.free;
        self.regions.retain(|region| {
            let stays = wanted(region) || free.get(&region.address) != Some(&region.bytes);
            if !stays {
                free.remove(&region.address);
            }
            stays
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_do_not_overlap_and_can_be_reused() {
        // GIVEN an arena of two regions
        let regions = [(1 << 30, 64u64 << 20), (2 << 30, 32 << 20)];
        let mut arena = Arena::new();
        for (address, bytes) in regions {
            arena.regions.push(Region::pinned_for_tests(address, bytes));
            arena.free.insert(address, bytes);
        }
        // WHEN pieces are taken and returned in a random order
        let mut random = fastrand::Rng::with_seed(1);
        let mut next = |below: u64| random.u64(..below);
        let mut taken: Vec<Vec<Span>> = Vec::new();
        for _ in 0..5000 {
            if next(2) == 0 || taken.is_empty() {
                let bytes = (1 + next(8)) << 21;
                let free = arena.free_bytes();
                match arena.take(bytes) {
                    Some(spans) => {
                        assert_eq!(spans.iter().map(|span| span.bytes).sum::<u64>(), bytes);
                        taken.push(spans);
                    }
                    None => assert!(free < bytes),
                }
            } else {
                let spans = taken.swap_remove(next(taken.len() as u64) as usize);
                arena.give_back(&spans);
            }
            // THEN no byte is taken twice, none is lost, and none is outside the regions
            let mut all: Vec<(usize, u64)> = arena.free.iter().map(|(&address, &bytes)| (address, bytes)).collect();
            all.extend(taken.iter().flatten().map(|span| (span.address, span.bytes)));
            all.sort_unstable();
            assert!(all.windows(2).all(|pair| pair[0].0 + pair[0].1 as usize <= pair[1].0));
            assert_eq!(all.iter().map(|(_, bytes)| bytes).sum::<u64>(), 96 << 20);
            assert!(all.iter().all(|&(address, bytes)| {
                regions
                    .iter()
                    .any(|&(start, size)| address >= start && address + bytes as usize <= start + size as usize)
            }));
        }
        std::mem::forget(arena); // Its regions are not mapped: nothing to release.
    }
}
