//! Notices that allocated memory grows, or that a forward begins beside the memory of an earlier one, and asks for a search
//! for what holds it.
//!
//! Costs a few instructions at each event. What it takes for growth may be a warm-up: a search costs some milliseconds.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use memlab_trace::record::Phase;

use crate::recorder::Recorder;

/// Devices whose growth is watched.
const MAX_DEVICES: usize = 16;

/// True if memory grew and no search has followed yet.
static IS_WANTED: AtomicBool = AtomicBool::new(false);

/// The least allocated memory of a device, in windows of events.
///
/// The windows cover the run: when all are full, each two become one, and the next are twice as long. One window is a quarter to
/// an eighth of the run, so an epoch is soon shorter than a window. The allocator's lock is held where this changes.
struct Floor {
    least: AtomicU64,
    left: AtomicU32,
    /// Events of the window that free memory, or allocate it in a forward.
    telling: AtomicU32,
    /// Events of a window.
    window: AtomicU32,
    /// Least memory of the full windows, [`UNTOLD`] where a program loads.
    minima: [AtomicU64; WINDOWS],
    full: AtomicU32,
    /// Events up to the last search that was made at once.
    searched: AtomicU64,
}

const WINDOWS: usize = 8;
const UNTOLD: u64 = u64::MAX;
/// Events of the first windows.
const FIRST_WINDOW: u32 = 32;
/// Windows in a row whose least memory must have risen.
const RISEN_WINDOWS: usize = 3;
/// Growth from one window to the next below this is none: 1 MiB.
const LEAST_GROWTH: u64 = 1 << 20;

static FLOORS: [Floor; MAX_DEVICES] = [const {
    Floor {
        least: AtomicU64::new(u64::MAX),
        left: AtomicU32::new(FIRST_WINDOW),
        telling: AtomicU32::new(0),
        window: AtomicU32::new(FIRST_WINDOW),
        minima: [const { AtomicU64::new(UNTOLD) }; WINDOWS],
        full: AtomicU32::new(0),
        searched: AtomicU64::new(0),
    }
}; MAX_DEVICES];

/// The memory of a device at the beginning of the last forward, and since.
///
/// The allocator's lock is held where this changes.
struct Forward {
    is_inside: AtomicBool,
    /// Allocated memory at its beginning, and at its most since.
    base: AtomicU64,
    top: AtomicU64,
    /// The least memory at the beginning of a forward, since it last fell from one to the next.
    low: AtomicU64,
    /// Memory above `low` at which the last search was wanted.
    searched: AtomicU64,
    most: AtomicU64,
}

static FORWARDS: [Forward; MAX_DEVICES] = [const {
    Forward {
        is_inside: AtomicBool::new(false),
        base: AtomicU64::new(u64::MAX),
        top: AtomicU64::new(0),
        low: AtomicU64::new(u64::MAX),
        searched: AtomicU64::new(0),
        most: AtomicU64::new(0),
    }
}; MAX_DEVICES];

/// Number of searches where a forward begins beside memory of an earlier one.
static FORWARD_SEARCHES: AtomicU32 = AtomicU32::new(0);
const MAX_FORWARD_SEARCHES: u32 = 8;
/// As many are made at once: a short program has no other moment.
const PROMPT_FORWARD_SEARCHES: u32 = 4;

/// Number of searches for growth that were made at once: each time that a run with growth has become twice as long.
static PROMPT_SEARCHES: AtomicU32 = AtomicU32::new(0);
const MAX_PROMPT_SEARCHES: u32 = 6;

/// Times from which the next search for growth, and where a forward begins, may be made.
static NEXT_SEARCH: AtomicU64 = AtomicU64::new(0);
static NEXT_IN_FORWARD: AtomicU64 = AtomicU64::new(0);

/// True if a forward has just begun beside much memory of an earlier one.
static IS_WANTED_IN_FORWARD: AtomicBool = AtomicBool::new(false);

/// Notes an allocation of `size` bytes in a phase, after which PyTorch has allocated `allocated` on a device.
///
/// Called with the allocator's lock held.
#[inline]
pub fn note_allocated(recorder: &Recorder, device: i32, size: u64, allocated: u64, phase: Phase) {
    let is_forward = phase == Phase::Forward;
    if let Some(forward) = FORWARDS.get(device as usize) {
        // The gradients that a forward computes belong to it.
        if is_forward && !forward.is_inside.load(Ordering::Relaxed) {
            forward.begin(recorder, allocated.saturating_sub(size));
        }
        if phase != Phase::Backward {
            forward.is_inside.store(is_forward, Ordering::Relaxed);
        }
        if allocated > forward.top.load(Ordering::Relaxed) {
            forward.top.store(allocated, Ordering::Relaxed);
        }
    }
    note(recorder, device, allocated, is_forward);
}

/// Notes that memory was freed. Called with the allocator's lock held.
#[inline]
pub fn note_freed(recorder: &Recorder, device: i32, allocated: u64) {
    note(recorder, device, allocated, true);
}

impl Forward {
    fn begin(&self, recorder: &Recorder, allocated: u64) {
        let (base, top) = (self.base.swap(allocated, Ordering::Relaxed), self.top.swap(allocated, Ordering::Relaxed));
        let most = self.most.load(Ordering::Relaxed).max(top);
        self.most.store(most, Ordering::Relaxed);
        if allocated < base {
            self.low.store(allocated, Ordering::Relaxed);
        }
        let kept = allocated.saturating_sub(self.low.load(Ordering::Relaxed));
        let is_much = kept >= most / 16 && kept >= top.saturating_sub(base) / 2 && kept > 0;
        if is_much && kept > self.searched.load(Ordering::Relaxed) / 4 * 5 {
            self.ask(recorder, kept);
        }
    }

    #[cold]
    fn ask(&self, recorder: &Recorder, kept: u64) {
        let made = FORWARD_SEARCHES.load(Ordering::Relaxed);
        let is_time = made < PROMPT_FORWARD_SEARCHES && kept >= self.searched.load(Ordering::Relaxed) * 2
            || is_after(recorder, &NEXT_IN_FORWARD);
        if made < MAX_FORWARD_SEARCHES && is_time {
            self.searched.store(kept, Ordering::Relaxed);
            IS_WANTED_IN_FORWARD.store(true, Ordering::Release);
            recorder.python.schedule();
        }
    }
}

/// Returns true if a forward began beside memory of an earlier one, and counts the search for its holder as made.
#[inline]
pub fn take_wanted_in_forward() -> bool {
    let is_wanted = IS_WANTED_IN_FORWARD.load(Ordering::Relaxed) && IS_WANTED_IN_FORWARD.swap(false, Ordering::AcqRel);
    if is_wanted {
        FORWARD_SEARCHES.fetch_add(1, Ordering::Relaxed);
    }
    is_wanted
}

/// Notes the memory that PyTorch has allocated on a device after an event.
///
/// `is_telling`: the event frees memory, or allocates it in a forward: the program does not only load.
#[inline]
fn note(recorder: &Recorder, device: i32, allocated: u64, is_telling: bool) {
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
        let least = self.least.swap(u64::MAX, Ordering::Relaxed);
        // Where little is freed, and no forward runs, the program loads.
        let is_telling = self.telling.swap(0, Ordering::Relaxed) >= window / 4;
        let last = self.full.load(Ordering::Relaxed) as usize;
        let minimum = |index: usize| self.minima[index].load(Ordering::Relaxed);
        self.minima[last].store(if is_telling { least } else { UNTOLD }, Ordering::Relaxed);
        let has_risen = |at: usize| {
            let (before, after) = (minimum(at - 1), minimum(at));
            after != UNTOLD && after.saturating_sub(before) >= LEAST_GROWTH.max(before / 64)
        };
        let grows = last >= RISEN_WINDOWS && (last + 1 - RISEN_WINDOWS..=last).all(has_risen);
        let (mut full, mut length) = (last + 1, window);
        if full == WINDOWS {
            (full, length) = (full / 2, window.saturating_mul(2));
            for index in 0..full {
                self.minima[index].store(minimum(2 * index).min(minimum(2 * index + 1)), Ordering::Relaxed);
            }
        }
        self.full.store(full as u32, Ordering::Relaxed);
        self.window.store(length, Ordering::Relaxed);
        self.left.store(length, Ordering::Relaxed);
        if grows {
            let events = full as u64 * u64::from(length);
            if events >= 2 * self.searched.load(Ordering::Relaxed)
                && PROMPT_SEARCHES.fetch_add(1, Ordering::Relaxed) < MAX_PROMPT_SEARCHES
            {
                self.searched.store(events, Ordering::Relaxed);
                NEXT_SEARCH.store(0, Ordering::Relaxed);
            }
            IS_WANTED.store(true, Ordering::Release);
            // A program with an optimizer is searched at the end of its step.
            if recorder.steps() == 0 {
                recorder.python.schedule();
            }
        }
    }
}

/// Returns true if memory grew and a search may be made now.
#[inline]
pub fn wants_search(recorder: &Recorder) -> bool {
    IS_WANTED.load(Ordering::Relaxed) && is_after(recorder, &NEXT_SEARCH)
}

fn is_after(recorder: &Recorder, time: &AtomicU64) -> bool {
    recorder.elapsed_ns() >= time.load(Ordering::Relaxed)
}

/// Notes a search: no other of its kind is made before this time of the trace.
pub fn wait_until(time: u64, is_in_forward: bool) {
    let next = if is_in_forward { &NEXT_IN_FORWARD } else { &NEXT_SEARCH };
    next.store(time, Ordering::Relaxed);
}

/// Returns true if a search is wanted, and counts it as made.
pub fn take_wanted() -> bool {
    IS_WANTED.swap(false, Ordering::AcqRel)
}

/// Called in a forked child.
pub fn reset_in_child() {
    IS_WANTED.store(false, Ordering::Relaxed);
    IS_WANTED_IN_FORWARD.store(false, Ordering::Relaxed);
    FORWARD_SEARCHES.store(0, Ordering::Relaxed);
    PROMPT_SEARCHES.store(0, Ordering::Relaxed);
    NEXT_SEARCH.store(0, Ordering::Relaxed);
    NEXT_IN_FORWARD.store(0, Ordering::Relaxed);
}
