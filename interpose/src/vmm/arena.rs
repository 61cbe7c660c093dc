//! Pinned host memory for bytes that have left the devices. It grows as needed and is kept for the next time: pinning
//! takes longer than copying.

use std::collections::BTreeMap;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use memlab_sizes::format as size;
use parking_lot::Mutex;

use crate::cuda::calls::{self, Code};
use crate::locks;

/// A piece of the arena: within one region, so that one copy can cover it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    pub address: usize,
    pub bytes: u64,
}

impl Span {
    pub fn pointer(self) -> *mut u8 {
        ptr::with_exposed_provenance_mut(self.address)
    }
}

/// Host memory that was pinned by one call.
struct Region {
    address: usize,
    bytes: u64,
}

#[derive(Default)]
pub struct Arena {
    regions: Vec<Region>,
    /// Address → bytes; adjacent free pieces of a region are merged.
    free: BTreeMap<usize, u64>,
}

/// Locked after [`super::movable_memory::MOVABLE_MEMORY`], or alone.
pub static ARENA: Mutex<Arena> = Mutex::new(Arena::new());

/// Called in a forked child, which does not have the pages.
pub fn reset_in_child() {
    locks::reset_in_child(&ARENA, Arena::new());
}

const LARGEST_REGION: u64 = 1 << 30;
const LEAST_REGION: u64 = 64 << 20;
const HUGE_PAGE: u64 = 2 << 20;
/// Separates regions, so that free pieces of two regions never merge.
const GAP: u64 = 4096;

impl Arena {
    pub const fn new() -> Self {
        Self { regions: Vec::new(), free: BTreeMap::new() }
    }

    /// Bytes pinned.
    pub fn bytes(&self) -> u64 {
        self.regions.iter().map(|region| region.bytes).sum()
    }

    pub fn free_bytes(&self) -> u64 {
        self.free.values().sum()
    }

    /// Grows until `bytes` are free. A context must be current. Memory pinned before an error stays for the next
    /// attempt.
    pub fn secure(&mut self, bytes: u64) -> Result<(), String> {
        let missing = bytes.saturating_sub(self.free_bytes()).next_multiple_of(HUGE_PAGE);
        if missing == 0 {
            return Ok(());
        }
        let workers = std::thread::available_parallelism().map_or(1, usize::from).min(8) as u64;
        let region = (missing / workers).next_multiple_of(HUGE_PAGE).clamp(LEAST_REGION, LARGEST_REGION);
        let sizes: Vec<u64> = (0..missing.div_ceil(region)).map(|i| region.min(missing - i * region)).collect();
        // The kernel allocates and zeroes pages on several threads; the driver pins them in order behind.
        let next = AtomicUsize::new(0);
        let (made, regions) = mpsc::channel();
        std::thread::scope(|scope| {
            let mut failure = None;
            for number in 0..workers.min(sizes.len() as u64) {
                let (next, sizes, made) = (&next, &sizes, made.clone());
                let work = move || {
                    while let Some(&bytes) = sizes.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let region = take_pages(bytes).map(|address| Region { address, bytes });
                        if made.send(region).is_err() {
                            break;
                        }
                    }
                };
                match std::thread::Builder::new().spawn_scoped(scope, work) {
                    Err(error) if number == 0 => {
                        failure = Some(format!("no thread could be started ({error}): nothing was moved"));
                        break;
                    }
                    Err(_) => break, // Fewer threads are enough.
                    Ok(_) => {}
                }
            }
            drop(made);
            for region in regions {
                let outcome = region.and_then(|region| {
                    match calls::pin(ptr::with_exposed_provenance_mut(region.address), region.bytes as usize) {
                        Ok(()) if failure.is_none() => {
                            self.free.insert(region.address, region.bytes);
                            self.regions.push(region);
                            Ok(())
                        }
                        Ok(()) => {
                            calls::unpin(ptr::with_exposed_provenance_mut(region.address));
                            give_pages_back(&region);
                            Ok(())
                        }
                        Err(code) => {
                            give_pages_back(&region);
                            Err(cannot_pin(region.bytes, code))
                        }
                    }
                });
                if let Err(error) = outcome {
                    next.store(sizes.len(), Ordering::Relaxed); // No thread starts another.
                    failure.get_or_insert(error);
                }
            }
            failure.map_or(Ok(()), Err)
        })
    }

    /// Takes pieces that add up to `bytes`, which [`secure`](Self::secure) has made available.
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

    /// Releases regions without taken spans to the system. A context must be current.
    pub fn shrink(&mut self) {
        let free = &mut self.free;
        self.regions.retain(|region| {
            let empty = free.get(&region.address) == Some(&region.bytes);
            if empty {
                free.remove(&region.address);
                calls::unpin(ptr::with_exposed_provenance_mut(region.address));
                give_pages_back(region);
            }
            !empty
        });
    }
}

/// Maps memory and makes the kernel back every page, so that a lack of memory is an error here and not later.
fn take_pages(bytes: u64) -> Result<usize, String> {
    let short = |bytes| format!("the system did not give {} of host memory: nothing was moved", size(bytes));
    // SAFETY: a fresh mapping, which no other thread knows; advice on it, which may be refused.
    unsafe {
        let address = libc::mmap(
            ptr::null_mut(),
            (bytes + GAP) as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        );
        if address == libc::MAP_FAILED {
            return Err(short(bytes));
        }
        libc::madvise(address, bytes as usize, libc::MADV_HUGEPAGE);
        // A forked child does not use it, and pages shared with one would be copied on the next write.
        libc::madvise(address, (bytes + GAP) as usize, libc::MADV_DONTFORK);
        if libc::madvise(address, bytes as usize, libc::MADV_POPULATE_WRITE) != 0 {
            if *libc::__errno_location() == libc::ENOMEM {
                libc::munmap(address, (bytes + GAP) as usize);
                return Err(short(bytes));
            }
            // A kernel before 5.14: touch the pages one by one.
            for page in (0..bytes as usize).step_by(4096) {
                address.cast::<u8>().add(page).write_volatile(0);
            }
        }
        Ok(address.expose_provenance())
    }
}

fn give_pages_back(region: &Region) {
    // SAFETY: mapped in `take_pages`, no longer pinned, and no span of it is taken.
    unsafe { libc::munmap(ptr::with_exposed_provenance_mut(region.address), (region.bytes + GAP) as usize) };
}

fn cannot_pin(bytes: u64, code: Code) -> String {
    format!("the driver did not pin {} of host memory ({code}): nothing was moved", size(bytes))
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
            arena.regions.push(Region { address, bytes });
            arena.free.insert(address, bytes);
        }
        // WHEN pieces are taken and returned in a random order
        let mut random = 0x9e37_79b9_7f4a_7c15u64;
        let mut next = |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
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
    }
}
