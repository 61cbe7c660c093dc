//! Messages to the user while the program runs.

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Writes one line to stderr.
///
/// Waits only briefly for a full pipe, and hides the SIGPIPE of a closed one from the program.
pub fn print_message(what: &str) {
    const WRITE_TIMEOUT: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    let line = format!("memlab: {what}\n");
    let stderr = rustix::stdio::stderr();
    if matches!(poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], Some(&WRITE_TIMEOUT)), Ok(0)) {
        return;
    }
    // SAFETY: signal and write calls on this thread with valid sets and a valid buffer; the mask is restored.
    unsafe {
        let mut pipe: libc::sigset_t = std::mem::zeroed();
        let (mut before, mut pending) = (pipe, pipe);
        libc::sigemptyset(&mut pipe);
        libc::sigaddset(&mut pipe, libc::SIGPIPE);
        libc::pthread_sigmask(libc::SIG_BLOCK, &pipe, &mut before);
        libc::sigpending(&mut pending);
        let pending_before = libc::sigismember(&pending, libc::SIGPIPE) == 1;
        let written = libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len());
        if written < 0 && !pending_before {
            let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            libc::sigtimedwait(&pipe, std::ptr::null_mut(), &now);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
    }
}
