//! memlab's background threads in the program's process.

use std::io;

/// Runs `work` on a new thread that blocks all of the program's signals.
///
/// # Errors
///
/// If the system cannot start a thread.
pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    with_signals_blocked(|| std::thread::Builder::new().name(name.to_owned()).spawn(work)).map(drop)
}

/// Runs `work` while this thread blocks all signals; a thread or process made in it blocks them, too.
pub fn with_signals_blocked<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: signal mask calls on this thread with valid sets; the mask is restored right after.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &all, &mut before);
        let result = work();
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        result
    }
}
