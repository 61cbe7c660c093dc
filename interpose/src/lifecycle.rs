//! The process's own life: loading, forking and the ways of ending.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::control;
use crate::late;
use crate::limit;
use crate::mover::{self, gate};
use crate::python::agent;
use crate::recorder::{self, Recorder};
use crate::symbols::Real;

static REAL_EXIT_NOW: Real<unsafe extern "C" fn(c_int) -> !> = Real::next(c"_exit");

unsafe extern "C" {
    /// glibc: like `atexit`, but the handler is told the exit status.
    fn on_exit(handler: unsafe extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

/// Runs when the library is loaded, before the program's `main`.
pub fn loaded() {
    // SAFETY: the handler stays loaded: libmemlab is linked with `-z nodelete`.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
}

/// Frees a lock that may have been held by another thread of the process this one was forked from.
pub fn free_in_child<T>(lock: &Mutex<T>) {
    if lock.is_locked() {
        // SAFETY: called in the child by its only thread, which does not hold it: the one that did does not exist here.
        unsafe { lock.force_unlock() };
    }
}

/// The same where what it protects is of no use to the child, or may have been left half changed: it is replaced, not
/// looked at.
pub fn reset_in_child<T>(lock: &Mutex<T>, value: T) {
    free_in_child(lock);
    // SAFETY: as above, nobody else is here; the old value's memory is lost on purpose.
    unsafe { std::ptr::write(lock.data_ptr(), value) };
}

unsafe extern "C" fn in_child() {
    recorder::forget_in_child();
    control::forget_in_child();
    agent::forget_in_child();
    late::forget_in_child();
    limit::forget_in_child();
    mover::forget_in_child();
}

/// Has the trace ended by `exit` and by returning from `main`.
pub fn watch_exit() {
    static WATCHING: AtomicBool = AtomicBool::new(false);
    if !WATCHING.swap(true, Ordering::Relaxed) {
        // SAFETY: as in `loaded`.
        unsafe { on_exit(exiting, std::ptr::null_mut()) };
    }
}

unsafe extern "C" fn exiting(code: c_int, _: *mut c_void) {
    gate::let_through(); // What other handlers have to do with the card must not wait: the socket is gone.
    end(code, Recorder::end);
}

/// `_exit`, which Python's `os._exit` calls: no handler runs, so the trace is ended here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _exit(code: c_int) -> ! {
    end(code, Recorder::end_at_once);
    if let Some(real) = REAL_EXIT_NOW.get() {
        // SAFETY: glibc's own function.
        unsafe { real(code) }
    }
    loop {
        // SAFETY: ends the process; needs no memory.
        unsafe { libc::syscall(libc::SYS_exit_group, code) };
    }
}

/// `_Exit`, C's name for the same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Exit(code: c_int) -> ! {
    // SAFETY: the same function.
    unsafe { _exit(code) }
}

fn end(code: c_int, how: impl FnOnce(&Recorder, c_int)) {
    static ENDED: AtomicBool = AtomicBool::new(false);
    // A vforked child runs in its parent's memory until it calls exec: its end is not the parent's.
    if let Some(recorder) = Recorder::current()
        && recorder.facts.pid == std::process::id()
        && !ENDED.swap(true, Ordering::AcqRel)
    {
        crate::quietly(|| {
            how(recorder, code);
            control::remove_socket(recorder.facts.pid);
        });
    }
}
