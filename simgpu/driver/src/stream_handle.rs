//! Checks of stream handles.

use crate::code::{Answer, Code};
use crate::current::current;
use crate::state::DriverState;

/// `CU_STREAM_NON_BLOCKING`.
pub const NON_BLOCKING: u32 = 1;

/// Returns true if a handle is the legacy default stream.
pub fn is_legacy(stream: usize) -> bool {
    matches!(stream, 0 | 1)
}

/// Checks that a handle is a stream: a default one (0, `CU_STREAM_LEGACY`, `CU_STREAM_PER_THREAD`) or an existing one.
pub fn check(state: &DriverState, stream: usize) -> Answer {
    if stream <= 2 {
        return current(state).map(|_| ());
    }
    state.streams.get(&stream).map(|_| ()).ok_or(Code::INVALID_HANDLE)
}
