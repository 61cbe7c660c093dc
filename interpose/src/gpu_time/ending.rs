//! Writes the remaining GPU times of a process that ends with `_exit`, on a separate thread.
//!
//! A signal may have interrupted the ending thread within CUPTI or an allocation, while it holds their locks. So the ending
//! thread waits for the separate thread for a limited time, and takes no lock.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::recorder::Recorder;
use interpose_base::background;
use interpose_base::panics;
use interpose_base::recursion::RecursionGuard;
use interpose_base::waker::Waker;

static THREAD: Waker = Waker::new();
static IS_WANTED: AtomicBool = AtomicBool::new(false);
static IS_DONE: AtomicBool = AtomicBool::new(false);

/// Maximum delay of the end of the process.
const END_TIMEOUT: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_micros(200);

/// Starts the thread, which calls `write`.
///
/// Without it, remaining times are lost at such an end.
pub fn start(recorder: &'static Recorder, write: fn(&Recorder)) {
    let _ = background::spawn("memlab-end", move || {
        let Some(_guard) = RecursionGuard::enter() else { return };
        THREAD.set(std::thread::current());
        while !IS_WANTED.load(Ordering::Acquire) {
            std::thread::park();
        }
        panics::catch(|| write(recorder));
        IS_DONE.store(true, Ordering::Release);
    });
}

/// Makes the thread write the remaining times, and waits for it.
///
/// The calling thread may hold any lock.
pub fn finish() {
    if !THREAD.is_set() {
        return;
    }
    IS_WANTED.store(true, Ordering::Release);
    THREAD.wake();
    let begun = Instant::now();
    while !IS_DONE.load(Ordering::Acquire) && begun.elapsed() < END_TIMEOUT {
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Called in a forked child, where the thread does not exist.
pub fn reset_in_child() {
    THREAD.reset_in_child();
}
