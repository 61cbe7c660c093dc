//! Source of calls and work: the simulated driver and runtime.

use std::ffi::{CStr, c_void};
use std::sync::{Mutex, Once, OnceLock, PoisonError};

use simgpu_observer::{OBSERVE_DRIVER, OBSERVE_RUNTIME, Observe, Observer, Submitted};

use crate::names::Domain;
use crate::{calls, nodes, settings, subscriber};

static DRIVER: Observer = Observer { entered: driver_call, left, submitted, node_made };
static RUNTIME: Observer = Observer { entered: runtime_call, left, submitted, node_made };

unsafe extern "C" fn driver_call(name: *const u8, len: usize) {
    // SAFETY: the observer's promise: a name of this length.
    calls::enter(Domain::Driver, unsafe { text(name, len) });
}

unsafe extern "C" fn runtime_call(name: *const u8, len: usize) {
    // SAFETY: the observer's promise: a name of this length.
    calls::enter(Domain::Runtime, unsafe { text(name, len) });
}

unsafe extern "C" fn left(status: i32) {
    calls::leave(status);
}

unsafe extern "C" fn submitted(work: *const Submitted) {
    // SAFETY: the observer's promise: work that is valid during the call.
    calls::submit(unsafe { &*work });
}

unsafe extern "C" fn node_made(node: usize, original: usize) {
    nodes::notify(node, original);
}

/// # Safety
/// There are `len` bytes at `start`.
unsafe fn text<'a>(start: *const u8, len: usize) -> &'a str {
    // SAFETY: the caller's promise.
    std::str::from_utf8(unsafe { std::slice::from_raw_parts(start, len) }).unwrap_or_default()
}

/// Returns the function of the driver or the runtime that sets an observer.
fn observe(library: *mut c_void, name: &CStr) -> Option<Observe> {
    // SAFETY: the name is NUL-terminated, and a function of that name has this type.
    unsafe { std::mem::transmute::<*mut c_void, Option<Observe>>(libc::dlsym(library, name.as_ptr())) }
}

/// Functions that set the observers of the driver and the runtime, after the first lookup.
static OBSERVES: OnceLock<[Option<Observe>; 2]> = OnceLock::new();

fn find_both() -> [Option<Observe>; 2] {
    // SAFETY: the name is NUL-terminated; the driver is never unloaded.
    let driver = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_LAZY) };
    let driver = if driver.is_null() { None } else { observe(driver, OBSERVE_DRIVER) };
    [driver, observe(libc::RTLD_DEFAULT, OBSERVE_RUNTIME)]
}

/// Sets or removes the observers.
fn set(observes: &[Option<Observe>; 2], is_observing: bool) {
    for (observe, observer) in observes.iter().zip([&DRIVER, &RUNTIME]) {
        if let Some(observe) = observe {
            // SAFETY: the observers never end.
            unsafe { observe(if is_observing { observer } else { std::ptr::null() }) };
        }
    }
}

/// Starts or stops observing after a change of the enabled records and callbacks.
pub fn update() {
    static OBSERVING: Mutex<bool> = Mutex::new(false);
    static FORKS: Once = Once::new();
    let mut observing = OBSERVING.lock().unwrap_or_else(PoisonError::into_inner);
    let wanted = settings::is_any_wanted() || subscriber::is_any_wanted() || nodes::is_any_wanted();
    if wanted != *observing {
        set(OBSERVES.get_or_init(find_both), wanted);
        *observing = wanted;
    }
    // SAFETY: the function meets the requirements of a child of a process with threads.
    FORKS.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(forked));
    });
}

/// Records nothing in a forked child: CUDA does not work there, and the thread that returns buffers is missing.
extern "C" fn forked() {
    if let Some(observes) = OBSERVES.get() {
        set(observes, false);
    }
}
