//! Searches for what holds memory: when growth is established, at an out-of-memory error, and on request.
//!
//! A search runs in a copy of the process (`interpose_holders::child`), so the program stands still only while it is made. A
//! thread of memlab writes the result to the trace.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use memlab_trace::encode;
use memlab_trace::record::{HolderSearch, SearchReason};

use crate::growth;
use crate::recorder::Recorder;
use interpose_base::background;
use interpose_base::recursion::RecursionGuard;
use interpose_holders::child::{self, Child};
use interpose_python::api::Api;
use interpose_python::walk::Interpreter;

/// A search that takes longer is given up.
const SEARCH_LIMIT: Duration = Duration::from_secs(20);
/// Maximum number of searches for growth in one process.
const MAX_GROWTH_SEARCHES: u32 = 24;
/// Time for which a search in the process may stop the program.
const IN_PLACE_LIMIT: Duration = Duration::from_millis(50);
/// Share of the time since the last search that the next pause may take: one part of this number.
const PAUSE_SHARE: u64 = 25;

static LAST_SEARCH: AtomicU32 = AtomicU32::new(0);
static GROWTH_SEARCHES: AtomicU32 = AtomicU32::new(0);
/// Number of searches that run.
static RUNNING: AtomicU32 = AtomicU32::new(0);

/// Maximum number of searches that run at once when one more begins. Those that nobody asked for leave room for the others.
const fn max_running(reason: SearchReason) -> u32 {
    match reason {
        SearchReason::Growth | SearchReason::Forward => 4,
        SearchReason::OutOfMemory => 6,
        SearchReason::Request => 8,
    }
}

/// Number of searches at out-of-memory errors: a program that tries sizes has many.
static OOM_SEARCHES: AtomicU32 = AtomicU32::new(0);
const MAX_OOM_SEARCHES: u32 = 12;
/// True if a search was asked for.
static IS_REQUESTED: AtomicBool = AtomicBool::new(false);

/// Asks for the agent again if growth was found and a search may be made now. Called a few times a second.
pub fn retry(recorder: &Recorder) {
    if growth::wants_search(recorder) {
        recorder.python.schedule();
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
    if growth::take_wanted_in_forward() {
        // SAFETY: as the caller promises.
        unsafe { search(api, recorder, interpreter, SearchReason::Forward) };
        return;
    }
    if growth::wants_search(recorder)
        && growth::take_wanted()
        && GROWTH_SEARCHES.fetch_add(1, Ordering::Relaxed) < MAX_GROWTH_SEARCHES
    {
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
/// If the process runs no Python that memlab can read, or no search can be made.
///
/// # Safety
///
/// As for [`search_if_wanted`].
pub unsafe fn search_now(recorder: &'static Recorder) -> Result<u32, String> {
    let (Some(api), Some(interpreter)) = (Api::get(), recorder.python.trusted()) else {
        return Err("this memlab does not support this version of Python".to_owned());
    };
    // SAFETY: as the caller promises.
    match unsafe { search(api, recorder, interpreter, SearchReason::Request) } {
        0 => Err("other searches run, or the system refuses a process".to_owned()),
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
    if RUNNING.fetch_add(1, Ordering::AcqRel) >= max_running(reason) {
        RUNNING.fetch_sub(1, Ordering::AcqRel);
        return 0;
    }
    let number = LAST_SEARCH.fetch_add(1, Ordering::Relaxed) + 1;
    let time = recorder.elapsed_ns();
    // Hooks that the copy calls record no event.
    let guard = RecursionGuard::enter();
    // SAFETY: the copy has this thread only, which holds the GIL.
    let child = unsafe {
        child::spawn(|output| {
            // Nodes of autograd graphs that the getters create, for instance, would define their stacks.
            recorder.log.stop_in_copy();
            let started = Instant::now();
            let lines = match interpose_holders::find(api, interpreter) {
                Ok(graph) => encode::holders(number, &graph, started.elapsed().as_nanos() as u64, ""),
                Err(why) => encode::failed_search(number, &why),
            };
            let _ = output.write_all(&lines);
        })
    };
    // SAFETY: as the caller promises.
    let child = child.map_err(|refused| (refused, unsafe { search_in_place(api, interpreter, number) }));
    drop(guard);
    let pause_ns = match &child {
        Ok(child) => child.pause.as_nanos() as u64,
        Err(_) => recorder.elapsed_ns() - time,
    };
    growth::wait_until(recorder.elapsed_ns() + PAUSE_SHARE * pause_ns, reason == SearchReason::Forward);
    recorder.log.append(&encode::holder_search(&HolderSearch { holder_search: number, time, reason, pause_ns }));
    let started = match child {
        Ok(child) => background::spawn("memlab holders", move || {
            let _guard = RecursionGuard::enter();
            write_lines(recorder, &result_of(number, child));
            RUNNING.fetch_sub(1, Ordering::AcqRel);
        }),
        Err((refused, lines)) => {
            write_lines(recorder, &lines);
            RUNNING.fetch_sub(1, Ordering::AcqRel);
            warn_of_refusal(recorder, &refused);
            Ok(())
        }
    };
    if let Err(error) = started {
        RUNNING.fetch_sub(1, Ordering::AcqRel);
        let why = format!("the system refuses a thread ({error})");
        recorder.log.append(&encode::failed_search(number, &why));
        recorder.warn(&format!("no search for what holds the memory: {why}"));
        return 0;
    }
    number
}

/// Searches in the process; returns lines for the trace.
///
/// # Safety
///
/// As for [`search_if_wanted`].
unsafe fn search_in_place(api: &'static Api, interpreter: &'static Interpreter, number: u32) -> Vec<u8> {
    let started = Instant::now();
    // SAFETY: as the caller promises.
    match unsafe { interpose_holders::find_in_place(api, interpreter, IN_PLACE_LIMIT) } {
        Ok((graph, skipped)) => encode::holders(number, &graph, started.elapsed().as_nanos() as u64, &skipped),
        Err(why) => encode::failed_search(number, &why),
    }
}

/// Warns once in a process.
fn warn_of_refusal(recorder: &Recorder, refused: &std::io::Error) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        recorder.warn(&format!(
            "the system refuses a copy of this process ({refused}): searches for what holds the memory run in the process, \
             for about {} ms each",
            IN_PLACE_LIMIT.as_millis()
        ));
    });
}

/// The lines that a copy wrote, when it has ended.
fn result_of(number: u32, child: Child) -> Vec<u8> {
    match child.read(SEARCH_LIMIT) {
        Ok(lines) if lines.ends_with(b"\n") => lines,
        Ok(_) => encode::failed_search(number, "its result is incomplete"),
        Err(error) => encode::failed_search(number, &error.to_string()),
    }
}

fn write_lines(recorder: &Recorder, lines: &[u8]) {
    for line in lines.split_inclusive(|byte| *byte == b'\n') {
        recorder.log.append(line);
    }
}

/// Called in a forked child, whose memory is another's.
pub fn reset_in_child() {
    for count in [&RUNNING, &OOM_SEARCHES, &GROWTH_SEARCHES] {
        count.store(0, Ordering::Relaxed);
    }
    IS_REQUESTED.store(false, Ordering::Relaxed);
    growth::reset_in_child();
}
