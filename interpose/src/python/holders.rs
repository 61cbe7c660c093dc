//! Searches for what holds memory: when growth is established, at an out-of-memory error, and on request.
//!
//! A search runs in a copy of the process (`interpose_holders::child`), so the program stands still only while it is made. A
//! thread of memlab writes the result to the trace.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use memlab_trace::encode;
use memlab_trace::record::{HolderSearch, SearchReason};

use crate::recorder::Recorder;
use interpose_base::background;
use interpose_base::recursion::RecursionGuard;
use interpose_holders::child::{self, Child};
use interpose_python::api::Api;
use interpose_python::walk::Interpreter;

/// A search that takes longer is given up.
const SEARCH_LIMIT: Duration = Duration::from_secs(20);
/// Time that the end of the process waits for a search.
const END_LIMIT: Duration = Duration::from_secs(3);
/// Maximum number of searches for growth in one process.
const MAX_GROWTH_SEARCHES: u32 = 24;
/// Share of the time since the last search that the next pause may take: one part of this number.
const PAUSE_SHARE: u64 = 25;
/// Devices whose growth is watched.
const MAX_DEVICES: usize = 16;

static LAST_SEARCH: AtomicU32 = AtomicU32::new(0);
static GROWTH_SEARCHES: AtomicU32 = AtomicU32::new(0);
/// Time from which the next search for growth may be made.
static NEXT_SEARCH: AtomicU64 = AtomicU64::new(0);
/// Number of searches that run.
static RUNNING: AtomicU32 = AtomicU32::new(0);
/// Maximum number of searches that run at once; others are left out.
const MAX_RUNNING: u32 = 4;
/// Number of searches at out-of-memory errors: a program that tries sizes has many.
static OOM_SEARCHES: AtomicU32 = AtomicU32::new(0);
const MAX_OOM_SEARCHES: u32 = 12;
/// True if a search was asked for.
static IS_REQUESTED: AtomicBool = AtomicBool::new(false);
/// True if growth was found and no search has followed yet.
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
        if risen >= RISEN_WINDOWS && GROWTH_SEARCHES.load(Ordering::Relaxed) < MAX_GROWTH_SEARCHES {
            IS_WANTED.store(true, Ordering::Release);
            // A program with an optimizer is searched at the end of its step.
            if recorder.steps() == 0 {
                recorder.python.schedule();
            }
        }
    }
}

/// Asks for the agent again if growth was found and a search may be made now. Called a few times a second.
pub fn retry(recorder: &Recorder) {
    if IS_WANTED.load(Ordering::Relaxed) && recorder.elapsed_ns() >= NEXT_SEARCH.load(Ordering::Relaxed) {
        recorder.python.schedule();
    }
}

/// Searches once more if memory grows while the program ends: its last search may be long ago.
///
/// # Safety
///
/// As for [`search_if_wanted`].
pub unsafe fn search_at_end(api: &'static Api, recorder: &'static Recorder, interpreter: &'static Interpreter) {
    let grows = |floor: &Floor| floor.risen.load(Ordering::Relaxed) >= RISEN_WINDOWS;
    if FLOORS.iter().any(grows) {
        // SAFETY: as the caller promises.
        unsafe { search(api, recorder, interpreter, SearchReason::Growth) };
    }
}

/// Searches if growth was found. Called at the end of a step, and by the agent.
///
/// # Safety
///
/// The GIL must be held, and no lock of PyTorch.
pub unsafe fn search_if_wanted(api: &'static Api, recorder: &'static Recorder, interpreter: &'static Interpreter) {
    if IS_REQUESTED.load(Ordering::Relaxed) && IS_REQUESTED.swap(false, Ordering::AcqRel) {
        // SAFETY: as the caller promises.
        unsafe { search(api, recorder, interpreter, SearchReason::Request) };
        return;
    }
    if IS_WANTED.load(Ordering::Relaxed)
        && recorder.elapsed_ns() >= NEXT_SEARCH.load(Ordering::Relaxed)
        && IS_WANTED.swap(false, Ordering::AcqRel)
    {
        GROWTH_SEARCHES.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { search(api, recorder, interpreter, SearchReason::Growth) };
    }
}

/// Asks for a search the next time that the main thread runs Python. Returns the trace time from which it may begin.
///
/// # Errors
///
/// If the process runs no Python that memlab can read.
pub fn request(recorder: &Recorder) -> Result<u64, String> {
    if recorder.python.trusted().is_none() {
        return Err("the process runs no Python, or one that this memlab does not support".to_owned());
    }
    IS_REQUESTED.store(true, Ordering::Release);
    let time = recorder.elapsed_ns();
    recorder.python.schedule();
    Ok(time)
}

/// Starts a search for a caller in Python; returns its number.
///
/// # Errors
///
/// If the process runs no Python that memlab can read, or another search does not end.
///
/// # Safety
///
/// As for [`search_if_wanted`].
pub unsafe fn search_now(recorder: &'static Recorder) -> Result<u32, String> {
    let (Some(api), Some(interpreter)) = (Api::get(), recorder.python.trusted()) else {
        return Err("this memlab does not support this version of Python".to_owned());
    };
    wait(SEARCH_LIMIT);
    // SAFETY: as the caller promises.
    match unsafe { search(api, recorder, interpreter, SearchReason::Request) } {
        0 => Err("another search runs, or the system refuses a process".to_owned()),
        number => Ok(number),
    }
}

/// Starts a search; returns its number, or 0 if another runs or none can be made.
///
/// # Safety
///
/// As for [`search_if_wanted`].
pub unsafe fn search(
    api: &'static Api,
    recorder: &'static Recorder,
    interpreter: &'static Interpreter,
    reason: SearchReason,
) -> u32 {
    if reason == SearchReason::OutOfMemory && OOM_SEARCHES.fetch_add(1, Ordering::Relaxed) >= MAX_OOM_SEARCHES {
        return 0;
    }
    if RUNNING.fetch_add(1, Ordering::AcqRel) >= MAX_RUNNING {
        RUNNING.fetch_sub(1, Ordering::AcqRel);
        return 0;
    }
    let number = LAST_SEARCH.fetch_add(1, Ordering::Relaxed) + 1;
    let time = recorder.elapsed_ns();
    // Hooks that the copy calls do nothing.
    let guard = RecursionGuard::enter();
    // SAFETY: the copy has this thread only, which holds the GIL.
    let child = unsafe {
        child::spawn(|output| {
            let started = Instant::now();
            let lines = match interpose_holders::find(api, interpreter) {
                Some(graph) => encode::holders(number, &graph, started.elapsed().as_nanos() as u64),
                None => encode::failed_search(number, "PyTorch is not loaded, or memlab does not know this version"),
            };
            let _ = output.write_all(&lines);
        })
    };
    drop(guard);
    let pause_ns = child.as_ref().map_or(0, |child| child.pause.as_nanos() as u64);
    NEXT_SEARCH.store(recorder.elapsed_ns() + PAUSE_SHARE * pause_ns, Ordering::Relaxed);
    recorder.log.append(&encode::holder_search(&HolderSearch { holder_search: number, time, reason, pause_ns }));
    let is_started = match child {
        Ok(child) => background::spawn("memlab holders", move || {
            let _guard = RecursionGuard::enter();
            write_result(recorder, number, child);
            RUNNING.fetch_sub(1, Ordering::AcqRel);
        })
        .is_ok(),
        Err(error) => {
            recorder.warn(&format!("no search for what holds the memory: the system refuses a process ({error})"));
            false
        }
    };
    if !is_started {
        RUNNING.fetch_sub(1, Ordering::AcqRel);
        return 0;
    }
    number
}

fn write_result(recorder: &Recorder, number: u32, child: Child) {
    let lines = match child.read(SEARCH_LIMIT) {
        Ok(lines) if lines.ends_with(b"\n") => lines,
        Ok(_) => encode::failed_search(number, "its result is incomplete"),
        Err(error) => encode::failed_search(number, &error.to_string()),
    };
    for line in lines.split_inclusive(|byte| *byte == b'\n') {
        recorder.log.append(line);
    }
}

/// Waits for a search that runs. Called when the process ends.
pub fn finish() {
    wait(END_LIMIT);
}

fn wait(limit: Duration) {
    let deadline = Instant::now() + limit;
    while RUNNING.load(Ordering::Acquire) > 0 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Called in a forked child, whose memory is another's.
pub fn reset_in_child() {
    RUNNING.store(0, Ordering::Relaxed);
    OOM_SEARCHES.store(0, Ordering::Relaxed);
    IS_WANTED.store(false, Ordering::Relaxed);
    GROWTH_SEARCHES.store(0, Ordering::Relaxed);
}
