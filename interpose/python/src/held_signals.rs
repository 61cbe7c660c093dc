//! Signals that arrive while the agent runs: they reach the program when the agent has ended.
//!
//! The interpreter runs a signal's Python handler between two bytecodes of its main thread. In the agent, the handler would
//! raise there, or find frames of memlab's.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};

/// Signals that programs handle in Python.
const SIGNALS: [c_int; 6] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGALRM, libc::SIGUSR1, libc::SIGUSR2];

/// A bit for each signal that has arrived.
static ARRIVED: AtomicU64 = AtomicU64::new(0);

/// The handler and flags of each signal that is held, for a process that another thread forks meanwhile.
static BEFORE: [(AtomicUsize, AtomicI32); SIGNALS.len()] =
    [const { (AtomicUsize::new(0), AtomicI32::new(0)) }; SIGNALS.len()];

extern "C" fn note(signal: c_int) {
    ARRIVED.fetch_or(1 << signal, Ordering::SeqCst);
}

/// The address of `note`: the same wherever it is asked for, which a function's address need not be.
#[inline(never)]
fn ours() -> usize {
    note as *const () as usize
}

/// Holds signals back until it is dropped. Signals without a handler keep their effect.
pub struct HeldSignals([Option<libc::sigaction>; SIGNALS.len()]);

impl HeldSignals {
    /// Replaces the handlers of the program's.
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
    /// Puts the handlers back, and sends what has arrived to this thread.
    fn drop(&mut self) {
        for (&signal, before) in SIGNALS.iter().zip(&self.0) {
            let Some(before) = before else { continue };
            // Another thread of the program may have set a handler meanwhile, which stays.
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

/// Called in a forked child, in which the thread that holds signals does not run.
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
