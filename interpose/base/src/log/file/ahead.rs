//! Populates the pages of upcoming lines in advance, so that no thread of the program waits for the kernel to do it.

use std::sync::atomic::Ordering;

use super::{PAGE, TraceFile};

/// Minimum number of bytes populated ahead of the lines.
const MIN_BYTES_AHEAD: u64 = 256 << 10;

impl TraceFile {
    /// Populates twice as many bytes ahead as were written since the last call.
    ///
    /// One thread calls this periodically.
    pub fn fault_ahead(&self) {
        let (tail, ready) = (self.tail.load(Ordering::Relaxed), self.ready.load(Ordering::Relaxed));
        let written = tail.saturating_sub(self.seen_tail.swap(tail, Ordering::Relaxed));
        if self.base.is_null() || written == 0 {
            return;
        }
        let from = self.faulted.load(Ordering::Relaxed).max(tail).next_multiple_of(PAGE);
        let to = (tail + (2 * written).max(MIN_BYTES_AHEAD)).min(ready) / PAGE * PAGE;
        if from < to {
            self.faulted.store(to, Ordering::Relaxed);
            // SAFETY: whole pages of the mapping. They are not written to; where the file has ended or the mapping was
            // released meanwhile, or before Linux 5.14, nothing happens.
            unsafe {
                let start = self.base.add(from as usize).cast();
                libc::madvise(start, (to - from) as usize, libc::MADV_POPULATE_WRITE);
            }
        }
    }
}
