//! Driver calls in flight that allocate or free memory, for all threads.
//!
//! During such a call, the use of the device and the recorded events differ. A sample of the use is exact only if no call was
//! in flight while it was taken. Calls never wait for a sample.

use std::sync::atomic::{AtomicU64, Ordering};

static BEGUN: AtomicU64 = AtomicU64::new(0);
static ENDED: AtomicU64 = AtomicU64::new(0);

/// A call in flight, from before the driver is called until its event is recorded.
pub struct MemoryCall(());

impl MemoryCall {
    pub fn begin() -> Self {
        BEGUN.fetch_add(1, Ordering::SeqCst);
        Self(())
    }
}

impl Drop for MemoryCall {
    fn drop(&mut self) {
        ENDED.fetch_add(1, Ordering::SeqCst);
    }
}

/// Returns the number of calls so far; `None` while one is in flight.
///
/// A measurement between two equal numbers saw no call.
pub fn count() -> Option<u64> {
    let ended = ENDED.load(Ordering::SeqCst);
    (BEGUN.load(Ordering::SeqCst) == ended).then_some(ended)
}

/// Called in a forked child: calls of other threads never end there.
pub fn reset_in_child() {
    ENDED.store(BEGUN.load(Ordering::SeqCst), Ordering::SeqCst);
}
