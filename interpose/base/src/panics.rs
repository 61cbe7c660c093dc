//! Keeps memlab's own bugs from ending the program.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a part of memlab; returns `None` if it panicked.
///
/// By then, the panic hook has printed the message.
pub fn catch<T>(part: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(part)).ok()
}
