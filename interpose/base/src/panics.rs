//! Keeps memlab's own bugs from ending the program.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a part of memlab; `None` if it panicked. The panic hook has printed the message by then.
pub fn catch<T>(part: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(part)).ok()
}
