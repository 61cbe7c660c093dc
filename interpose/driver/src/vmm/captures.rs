//! Streams that are being captured into a graph.
//!
//! During a capture nothing can be synchronised.

use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::calls;

/// Stream handle, and the thread if each thread has a separate stream under that handle (otherwise 0).
type Key = (u64, usize);

/// Streams that are being captured, and the context in which each capture began.
static CAPTURING: Mutex<Option<HashMap<Key, u64>>> = Mutex::new(None);

fn key(stream: u64) -> Key {
    /// `CU_STREAM_PER_THREAD`.
    ///
    /// Functions for per-thread streams (`_ptsz`) also call it 0. The legacy stream, 0 in the other functions, cannot be
    /// captured.
    const PER_THREAD: u64 = 2;
    match stream {
        // SAFETY: pthread_self cannot fail.
        0 | PER_THREAD => (PER_THREAD, unsafe { libc::pthread_self() } as usize),
        stream => (stream, 0),
    }
}

/// Records that a capture is about to begin.
///
/// Called before the driver's call, so that the thread that closes the gate and finds it empty knows of all captures.
/// Returns false if the stream is already being captured: the second call fails, and the first capture goes on.
pub fn begins(stream: u64) -> bool {
    let context = calls::current_context();
    CAPTURING.lock().get_or_insert_default().try_insert(key(stream), context).is_ok()
}

/// Forgets the stream's capture: it has ended, the stream was destroyed, or the capture never began.
pub fn ended(stream: u64) {
    if let Some(capturing) = CAPTURING.lock().as_mut() {
        capturing.remove(&key(stream));
    }
}

/// Handles a failed call that should have ended a capture: the capture may go on.
pub fn ended_perhaps(stream: u64) {
    let is_known = CAPTURING.lock().as_ref().is_some_and(|capturing| capturing.contains_key(&key(stream)));
    // Query the driver only about known streams: another handle may be invalid.
    if is_known && !calls::is_capturing(key(stream).0) {
        ended(stream);
    }
}

/// Forgets the captures of a destroyed context.
pub fn context_destroyed(context: u64) {
    if let Some(capturing) = CAPTURING.lock().as_mut() {
        capturing.retain(|_, of| *of != context);
    }
}

pub fn is_any() -> bool {
    CAPTURING.lock().as_ref().is_some_and(|capturing| !capturing.is_empty())
}

pub fn reset_in_child() {
    interpose_base::locks::reset_in_child(&CAPTURING, None);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_have_separate_streams() {
        // GIVEN two threads that capture their streams, with the per-thread handle or 0
        assert!(begins(2) && !begins(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert!(begins(0));
                ended(2);
            });
        });
        // THEN ending one capture does not end the other
        assert!(is_any());
        ended(0);
        assert!(!is_any());
        // AND any thread can end the capture of another stream
        assert!(begins(77));
        std::thread::scope(|scope| {
            scope.spawn(|| ended(77));
        });
        assert!(!is_any());
    }
}
