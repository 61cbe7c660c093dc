//! Notices that allocated memory grows, and asks for a search for what holds it.
//!
//! Costs a few instructions at each event. What it takes for growth may be a warm-up: a search costs some milliseconds.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::recorder::Recorder;

/// Devices whose growth is watched.
const MAX_DEVICES: usize = 16;

/// True if memory grew and no search has followed yet.
static IS_WANTED: AtomicBool = AtomicBool::new(false);

/// The least allocated memory of a device, over windows of events that grow by half.
///
/// The allocator's lock is held where this changes.
struct Floor {
    least: AtomicU64,
    left: AtomicU32,
    /// Events of the window that free memory, or allocate it in a forward.
    telling: AtomicU32,
    window: AtomicU32,
    /// Least memory of the window before, and number of windows in which it has risen since it last did not.
    before: AtomicU64,
    risen: AtomicU32,
}

/// Events of the first window.
const FIRST_WINDOW: u32 = 32;
/// Windows in a row whose least memory must have risen.
const RISEN_WINDOWS: u32 = 3;
/// Growth from one window to the next below this is none: 1 MiB.
const LEAST_GROWTH: u64 = 1 << 20;

static FLOORS: [Floor; MAX_DEVICES] = [const {
    Floor {
        least: AtomicU64::new(u64::MAX),
        left: AtomicU32::new(FIRST_WINDOW),
        telling: AtomicU32::new(0),
        window: AtomicU32::new(FIRST_WINDOW),
        before: AtomicU64::new(u64::MAX),
        risen: AtomicU32::new(0),
    }
}; MAX_DEVICES];

/// Notes the memory that PyTorch has allocated on a device after an event.
///
/// `is_telling`: the event frees memory, or allocates it in a forward: the program does not only load.
/// Called with the allocator's lock held.
#[inline]
pub fn note(recorder: &Recorder, device: i32, allocated: u64, is_telling: bool) {
    let Some(floor) = FLOORS.get(device as usize) else { return };
    if allocated < floor.least.load(Ordering::Relaxed) {
        floor.least.store(allocated, Ordering::Relaxed);
    }
    if is_telling {
        floor.telling.store(floor.telling.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
    let left = floor.left.load(Ordering::Relaxed) - 1;
    floor.left.store(left, Ordering::Relaxed);
    if left == 0 {
        floor.close_window(recorder);
    }
}

impl Floor {
    #[cold]
    fn close_window(&self, recorder: &Recorder) {
        let window = self.window.load(Ordering::Relaxed);
        let (least, before) = (self.least.swap(u64::MAX, Ordering::Relaxed), self.before.load(Ordering::Relaxed));
        let telling = self.telling.swap(0, Ordering::Relaxed);
        self.before.store(least, Ordering::Relaxed);
        // Where little is freed, and no forward runs, the program loads.
        let has_risen = telling >= window / 4 && least.saturating_sub(before) >= LEAST_GROWTH.max(before / 64);
        let risen = if has_risen { self.risen.load(Ordering::Relaxed) + 1 } else { 0 };
        self.risen.store(risen, Ordering::Relaxed);
        // While memory grows, the searches follow closely, so that one is made near the end.
        let next =
            if risen >= RISEN_WINDOWS { window.saturating_add(window / 4) } else { window.saturating_add(window / 2) };
        self.window.store(next, Ordering::Relaxed);
        self.left.store(next, Ordering::Relaxed);
        if risen >= RISEN_WINDOWS {
            IS_WANTED.store(true, Ordering::Release);
            // A program with an optimizer is searched at the end of its step.
            if recorder.steps() == 0 {
                recorder.python.schedule();
            }
        }
    }
}

/// Returns true if a search is wanted.
#[inline]
pub fn wants_search() -> bool {
    IS_WANTED.load(Ordering::Relaxed)
}

/// Returns true if a search is wanted, and counts it as made.
pub fn take_wanted() -> bool {
    IS_WANTED.swap(false, Ordering::AcqRel)
}

/// Called in a forked child.
pub fn reset_in_child() {
    IS_WANTED.store(false, Ordering::Relaxed);
}
