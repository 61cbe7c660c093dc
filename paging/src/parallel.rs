//! Runs jobs on a few threads.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use parking_lot::Mutex;

use crate::error::Result;

/// Number of threads that can run at once.
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Divides `bytes` into pieces.
pub fn pieces(bytes: u64, piece: u64) -> impl Iterator<Item = Range<u64>> {
    (0..bytes.div_ceil(piece)).map(move |i| i * piece..bytes.min((i + 1) * piece))
}

/// Runs `count` jobs on at most `threads` threads, including this one.
///
/// Stops at the first error.
pub fn in_parallel(threads: usize, count: usize, job: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
    let (next, failure) = (AtomicUsize::new(0), Mutex::new(None));
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                break;
            }
            if let Err(error) = job(index) {
                next.store(count, Ordering::Relaxed); // No thread starts another job.
                failure.lock().get_or_insert(error);
                break;
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads.min(count) {
            if thread::Builder::new().name("memlab-load".to_owned()).spawn_scoped(scope, work).is_err() {
                break; // Fewer threads are enough.
            }
        }
        work();
    });
    failure.into_inner().map_or(Ok(()), Err)
}
