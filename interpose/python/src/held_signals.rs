//! Signals that arrive while the agent runs.
//!
//! They reach the program when the agent has ended.
//!
//! The interpreter runs a signal's Python handler between two bytecodes of its main thread. Inside the agent, the handler
//! would raise in memlab's code, or find memlab's frames.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};

/// Signals that programs handle in Python.
const SIGNALS: [c_int; 6] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGALRM, libc::SIGUSR1, libc::SIGUSR2];

/// One bit for each signal that has arrived.
static ARRIVED: AtomicU64 = AtomicU64::new(0);

/// Handler and flags of each held signal, for a process that another thread forks in the meantime.
static BEFORE: [(AtomicUsize, AtomicI32); SIGNALS.len()] =
    [const { (AtomicUsize::new(0), AtomicI32::new(0)) }; SIGNALS.len()];

extern "C" fn note(signal: c_int) {
    ARRIVED.fetch_or(1 << signal, Ordering::SeqCst);
}

/// Address of `note`.
///
/// It is the same at every call, unlike a function's address taken at different places.
#[inline(never)]
fn ours() -> usize {
    note as *const () as usize
}

/// Holds signals back until dropped.
///
/// Signals without a handler keep their effect.
pub struct HeldSignals([Option<libc::sigaction>; SIGNALS.len()]);

impl HeldSignals {
    /// Replaces the program's handlers.
    pub fn hold() -> Self {
        Self(std::array::from_fn(|index| {
            let signal = SIGNALS[index];
            let before = action_of(signal)?;
            if [libc::SIG_DFL, libc::SIG_IGN, ours()].contains(&before.sa_sigaction) {
                return None;
            }
            BEFORE[index].0.store(before.sa_sigaction, Ordering::Relaxed);
            BEFORE[index].1.store(before.sa_flags, Ordering::Release);
            let action = libc::sigaction {
                sa_sigaction: ours(),
                sa_flags: before.sa_flags & (libc::SA_ONSTACK | libc::SA_RESTART),
                ..before
            };
            // SAFETY: `note` is async-signal-safe, and the structure is complete.
            (unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) } == 0).then_some(before)
        }))
    }
}

impl Drop for HeldSignals {
    /// Restores the handlers, and sends the signals that have arrived to this thread.
    fn drop(&mut self) {
        for (&signal, before) in SIGNALS.iter().zip(&self.0) {
            let Some(before) = before else { continue };
            // Another thread of the program may have set a handler in the meantime; it stays.
            if action_of(signal).is_some_and(|now| now.sa_sigaction == ours()) {
                // SAFETY: the action was the program's.
                unsafe { libc::sigaction(signal, before, ptr::null_mut()) };
            }
            if ARRIVED.fetch_and(!(1 << signal), Ordering::SeqCst) & (1 << signal) != 0 {
                // SAFETY: no memory is involved.
                unsafe { libc::raise(signal) };
            }
        }
    }
}

/// Called in a forked child, where the thread that holds signals does not run.
pub fn reset_in_child() {
    ARRIVED.store(0, Ordering::Relaxed);
    for (&signal, (handler, flags)) in SIGNALS.iter().zip(&BEFORE) {
        let Some(mut action) = action_of(signal).filter(|now| now.sa_sigaction == ours()) else { continue };
        action.sa_sigaction = handler.load(Ordering::Relaxed);
        action.sa_flags = flags.load(Ordering::Relaxed);
        // SAFETY: the action was the program's.
        unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) };
    }
}

fn action_of(signal: c_int) -> Option<libc::sigaction> {
    let mut action = MaybeUninit::uninit();
    // SAFETY: the structure is written if the call succeeds.
    unsafe { (libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) == 0).then(|| action.assume_init()) }
}
