//! Regions of the arena.
//!
//! Several threads fault in and pin their pages, while others copy into finished regions.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use memlab_units::format::size;
use parking_lot::{Condvar, Mutex};

use super::span::Span;
use crate::calls::{self, Code};
use interpose_base::background;
use interpose_base::panics;
use interpose_base::recursion::RecursionGuard;

/// Alignment and size of a huge page.
///
/// Pinning memory in small pages takes many times as long (`benches/pinning.c`).
pub(super) const HUGE_PAGE: u64 = 2 << 20;
/// Maximum size of a region.
///
/// Large enough that the number of regions does not matter, and small enough that copies into the first begin soon.
const MAX_REGION_BYTES: u64 = 256 << 20;
const MIN_REGION_BYTES: u64 = 64 << 20;
/// Bytes that one call faults in.
///
/// The program cannot change its mappings during the call, which takes a few milliseconds.
const FAULT_BYTES: usize = 16 << 20;
/// Maximum number of pinning threads.
///
/// More do not get pages from the system any faster.
const MAX_THREADS: usize = 16;

/// Host memory that is pinned by one call.
pub struct Region {
    pub(super) address: usize,
    pub(super) bytes: u64,
    state: Mutex<RegionState>,
    settled: Condvar,
}

#[derive(Clone, PartialEq, Eq)]
enum RegionState {
    Making,
    Pinned,
    Failed(String, Code),
}

impl Region {
    /// Maps addresses; the system provides the memory later.
    fn reserve(bytes: u64) -> Result<Self, String> {
        // SAFETY: a fresh mapping, which no other thread knows; advice on it, which may be refused.
        let address = unsafe {
            let mapping = libc::mmap(
                ptr::null_mut(),
                Self::mapped(bytes),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            );
            if mapping == libc::MAP_FAILED {
                return Err(not_given(bytes));
            }
            let offset = mapping.align_offset(HUGE_PAGE as usize);
            let address = mapping.byte_add(offset);
            // Unmap the parts before and after the region. The remaining page separates it from the next region: free pieces
            // of two regions never merge.
            libc::munmap(mapping, offset);
            libc::munmap(address.byte_add(bytes as usize + PAGE), Self::mapped(bytes) - offset - bytes as usize - PAGE);
            libc::madvise(address, bytes as usize, libc::MADV_HUGEPAGE);
            // A forked child does not use the region, and pages shared with a child would be copied on the next write.
            libc::madvise(address, bytes as usize + PAGE, libc::MADV_DONTFORK);
            address.expose_provenance()
        };
        Ok(Self { address, bytes, state: Mutex::new(RegionState::Making), settled: Condvar::new() })
    }

    /// Bytes to map so that they contain a region of `bytes` and a page after it, at an aligned address.
    fn mapped(bytes: u64) -> usize {
        (bytes + HUGE_PAGE) as usize + PAGE
    }

    #[cfg(test)]
    pub(super) fn pinned_for_tests(address: usize, bytes: u64) -> Arc<Self> {
        Arc::new(Self { address, bytes, state: Mutex::new(RegionState::Pinned), settled: Condvar::new() })
    }

    fn pointer(&self) -> *mut u8 {
        ptr::with_exposed_provenance_mut(self.address)
    }

    fn make(&self) -> Result<(), (String, Code)> {
        self.fault_in().map_err(|error| (error, Code::OUT_OF_MEMORY))?;
        calls::pin(self.pointer(), self.bytes as usize).map_err(|code| {
            (format!("the driver did not pin {} of host memory ({code}): nothing was moved", size(self.bytes)), code)
        })
    }

    /// Makes the system back every page, so that a lack of memory causes an error here and not later.
    fn fault_in(&self) -> Result<(), String> {
        let bytes = self.bytes as usize;
        for start in (0..bytes).step_by(FAULT_BYTES) {
            let (piece, length) = (self.pointer().wrapping_add(start), FAULT_BYTES.min(bytes - start));
            // SAFETY: the mapping is this region's, and no thread copies into it before it is pinned.
            unsafe {
                if libc::madvise(piece.cast(), length, libc::MADV_POPULATE_WRITE) == 0 {
                    continue;
                }
                if *libc::__errno_location() == libc::ENOMEM {
                    return Err(not_given(self.bytes));
                }
                // Before Linux 5.14: touch the pages one by one.
                for page in (0..length).step_by(PAGE) {
                    piece.add(page).write_volatile(0);
                }
            }
        }
        Ok(())
    }

    fn settle(&self, outcome: Result<(), (String, Code)>) {
        *self.state.lock() = match outcome {
            Ok(()) => RegionState::Pinned,
            Err((what, code)) => RegionState::Failed(what, code),
        };
        self.settled.notify_all();
    }

    fn wait(&self) -> Result<(), (String, Code)> {
        let mut state = self.state.lock();
        loop {
            match &*state {
                RegionState::Making => self.settled.wait(&mut state),
                RegionState::Pinned => return Ok(()),
                RegionState::Failed(what, code) => return Err((what.clone(), *code)),
            }
        }
    }

    pub(super) fn is_pinned(&self) -> bool {
        *self.state.lock() == RegionState::Pinned
    }

    pub(super) fn is_being_made(&self) -> bool {
        *self.state.lock() == RegionState::Making
    }

    pub(super) fn has_failed(&self) -> bool {
        matches!(*self.state.lock(), RegionState::Failed(..))
    }
}

impl Drop for Region {
    /// Unmaps the region.
    ///
    /// A context must be current.
    fn drop(&mut self) {
        if *self.state.get_mut() == RegionState::Pinned {
            calls::unpin(self.pointer());
        }
        // SAFETY: the mapping is this region's; no span of it is taken, and it is no longer pinned.
        unsafe { libc::munmap(self.pointer().cast(), self.bytes as usize + PAGE) };
    }
}

const PAGE: usize = 4096;

fn not_given(bytes: u64) -> String {
    format!("the system did not give {} of host memory: nothing was moved", size(bytes))
}

/// Starts to pin regions of `bytes` in total, a multiple of [`HUGE_PAGE`].
pub(super) fn begin(bytes: u64, context: u64) -> Result<Vec<Arc<Region>>, String> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
    let largest = (bytes / threads as u64).next_multiple_of(HUGE_PAGE).clamp(MIN_REGION_BYTES, MAX_REGION_BYTES);
    let sizes = (0..bytes.div_ceil(largest)).map(|i| largest.min(bytes - i * largest));
    let regions = sizes.map(|bytes| Region::reserve(bytes).map(Arc::new)).collect::<Result<Vec<_>, String>>()?;
    let work = Arc::new(RegionQueue {
        regions: regions.clone(),
        next: AtomicUsize::new(0),
        has_failed: AtomicBool::new(false),
    });
    for number in 0..threads.min(regions.len()) {
        let work = work.clone();
        if let Err(error) = background::spawn("memlab-pin", move || work.run(context)) {
            if number == 0 {
                return Err(format!("no thread could be started ({error}): nothing was moved"));
            }
            break; // Fewer threads are enough.
        }
    }
    Ok(regions)
}

/// Regions that several threads pin, in order.
struct RegionQueue {
    regions: Vec<Arc<Region>>,
    next: AtomicUsize,
    has_failed: AtomicBool,
}

impl RegionQueue {
    fn run(&self, context: u64) {
        let _guard = RecursionGuard::enter(); // This thread's calls are not recorded.
        calls::relax_captures();
        while let Some(region) = self.regions.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            let outcome = if self.has_failed.load(Ordering::Relaxed) {
                Err((not_given(region.bytes), Code::OUT_OF_MEMORY)) // Further attempts are useless.
            } else {
                let made = panics::catch(|| {
                    calls::set_context(context)
                        .map_err(|code| (calls::context_error(code), code))
                        .and_then(|()| region.make())
                });
                made.unwrap_or_else(|| {
                    Err(("memlab made a mistake: please report this".to_owned(), Code::NOT_INITIALIZED))
                })
            };
            if outcome.is_err() {
                self.has_failed.store(true, Ordering::Relaxed);
            }
            region.settle(outcome);
        }
    }
}

/// Regions that were not yet pinned when this was created.
pub struct PendingRegions(pub(super) Vec<Arc<Region>>);

impl PendingRegions {
    pub const EMPTY: Self = Self(Vec::new());

    /// Waits until the region of `span` is pinned.
    pub fn wait_for(&self, span: Span) -> Result<(), Code> {
        let holds =
            |region: &&Arc<Region>| (region.address..region.address + region.bytes as usize).contains(&span.address);
        self.0.iter().find(holds).map_or(Ok(()), |region| region.wait().map_err(|(_, code)| code))
    }

    /// Waits for all regions; returns the first error.
    pub fn wait(&self) -> Result<(), String> {
        self.0.iter().map(|region| region.wait()).fold(Ok(()), Result::and).map_err(|(what, _)| what)
    }

    /// Reason for which a region could not be pinned.
    pub fn failure(&self) -> Option<String> {
        self.0.iter().find_map(|region| match &*region.state.lock() {
            RegionState::Failed(what, _) => Some(what.clone()),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn copies_wait_only_for_their_own_region() {
        // GIVEN two regions that are being pinned
        let regions = [0x1000_0000, 0x2000_0000].map(|address| {
            let making = Mutex::new(RegionState::Making);
            Arc::new(Region { address, bytes: HUGE_PAGE, state: making, settled: Condvar::new() })
        });
        let pending = PendingRegions(regions.to_vec());
        let last = |region: &Region| Span { address: region.address + HUGE_PAGE as usize - 1, bytes: 1 };
        std::thread::scope(|scope| {
            let first = scope.spawn(|| pending.wait_for(last(&regions[0])));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!first.is_finished());
            // WHEN the first is ready, THEN copies into it begin, and those into the other wait
            regions[0].settle(Ok(()));
            assert_eq!(first.join().unwrap(), Ok(()));
            let second = scope.spawn(|| pending.wait_for(last(&regions[1])));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!second.is_finished());
            // AND WHEN the other fails, THEN they fail, and the reason is known
            regions[1].settle(Err(("no memory".to_owned(), Code::OUT_OF_MEMORY)));
            assert_eq!(second.join().unwrap(), Err(Code::OUT_OF_MEMORY));
        });
        assert_eq!(pending.failure().as_deref(), Some("no memory"));
        assert_eq!(pending.wait(), Err("no memory".to_owned()));
        // AND nothing waits for a span outside these regions
        assert_eq!(pending.wait_for(Span { address: 0x3000_0000, bytes: 1 }), Ok(()));
        // The regions are not mapped: nothing to release.
        regions.into_iter().for_each(std::mem::forget);
        std::mem::forget(pending);
    }

    #[test]
    fn regions_are_aligned_and_never_adjacent() {
        let regions: Vec<Region> = (0..4).map(|_| Region::reserve(HUGE_PAGE).unwrap()).collect();
        let mut places: Vec<(usize, usize)> =
            regions.iter().map(|region| (region.address, region.address + region.bytes as usize)).collect();
        places.sort_unstable();
        assert!(places.iter().all(|(begin, _)| begin % HUGE_PAGE as usize == 0));
        assert!(places.windows(2).all(|pair| pair[0].1 < pair[1].0));
    }
}
