//! Life cycle of the process: loading the library, beginning a recording, and ending the process.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::compaction;
use crate::control;
use crate::cuda::dlsym::dlsym;
use crate::cuda::hook_lookup;
use crate::fork;
use crate::gpu_time;
use crate::limit::{card, settings};
use crate::mover::pinning_ahead;
use crate::python::agent;
use crate::ranges::nvtx;
use crate::recorder::{Recorder, start};
use crate::torch::{expected, hooks};
use interpose_base::config::config;
use interpose_base::got_patch::{self, Replacements};
use interpose_base::loaded_objects::{is_preloaded, path_of};
use interpose_base::panics;
use interpose_base::stderr::print_message;
use interpose_base::symbols::Real;
use interpose_driver::device;
use interpose_driver::vmm::{gate, mode};

static REAL_EXIT_NOW: Real<unsafe extern "C" fn(c_int) -> !> = Real::next(c"_exit");
static REAL_QUICK_EXIT: Real<unsafe extern "C" fn(c_int) -> !> = Real::next(c"quick_exit");

unsafe extern "C" {
    /// glibc's variant of `atexit`: the handler gets the exit status.
    fn on_exit(handler: unsafe extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

/// Runs when the library is loaded, before the program's `main`.
pub fn loaded() {
    if !config().enabled {
        return;
    }
    fork::watch();
    nvtx::announce();
    start::on_start(recording_begins);
    panics::catch(|| settings::start(config()));
    if config().offload {
        enable_offloading();
    } else if card::is_spilling() && is_preloaded() {
        gate::enable(); // Spilled memory can then come back.
    }
    if !is_preloaded() {
        hook_running_program();
    }
}

fn enable_offloading() {
    if !is_preloaded() {
        // Code that already runs would not pass the gate.
        print_message(
            "MEMLAB_OFFLOAD needs memlab to be there from the start (`memlab run --offload`): nothing can be offloaded",
        );
        return;
    }
    gate::enable();
    mode::enable();
}

/// Installs the hooks after the dynamic linker has bound the program's symbols.
fn hook_running_program() {
    got_patch::start(replacements);
    if path_of(c"libc10_cuda.so").is_some() && device::is_in_use() {
        agent::request_earlier_memory();
        // The recording begins now, not at the next use of CUDA: the agent can then ask PyTorch for existing memory.
        drop(Recorder::enter());
    }
}

/// Table of every function that memlab exports in place of another.
fn replacements() -> Replacements {
    let mut table = Replacements::default();
    table.insert(b"dlsym", dlsym as *const c_void);
    table.insert(b"_exit", _exit as *const c_void);
    table.insert(b"_Exit", _Exit as *const c_void);
    table.insert(b"quick_exit", quick_exit as *const c_void);
    table.extend(hook_lookup::replacements());
    table.extend(hooks::hooks().map(|hook| (hook.symbol.to_bytes(), hook.address)));
    table
}

/// Starts the other parts of a recording.
///
/// The caller may hold any lock of the program.
fn recording_begins(recorder: &'static Recorder) {
    recorder.python.start(&recorder.log, agent::run);
    expected::check(recorder);
    gpu_time::start(recorder);
    control::start(recorder);
    if config().offload_ready && mode::is_enabled() {
        pinning_ahead::start();
    }
    watch_exit();
}

/// Ends the trace at `exit` and on return from `main`.
fn watch_exit() {
    static WATCHING: AtomicBool = AtomicBool::new(false);
    if !WATCHING.swap(true, Ordering::Relaxed) {
        // SAFETY: the handler stays loaded: libmemlab is linked with `-z nodelete`.
        unsafe { on_exit(exiting, ptr::null_mut()) };
    }
}

extern "C" fn exiting(code: c_int, _: *mut c_void) {
    gate::exempt_this_thread(); // Other exit handlers' use of the card must not wait: the socket is removed.
    end(|recorder| {
        recorder.stop_events();
        gpu_time::finish(recorder);
        recorder.interner.sources.write(&recorder.log);
        compaction::finish();
        close(recorder, code);
    });
}

fn close(recorder: &Recorder, code: c_int) {
    compaction::report_lost(recorder);
    // A process's parent sees only the low byte: `sys.exit(300)` ends with 44.
    recorder.write_end_and_close(code & 0xff);
}

/// Ends the trace without waiting long: a signal may have interrupted the process anywhere.
fn end_at_once(recorder: &Recorder, code: c_int) {
    recorder.stop_events();
    gpu_time::finish_at_once();
    close(recorder, code);
}

/// `_exit`, which Python's `os._exit` calls: no exit handler runs, so the trace is ended here.
#[unsafe(no_mangle)]
pub extern "C" fn _exit(code: c_int) -> ! {
    end(|recorder| end_at_once(recorder, code));
    if let Some(real) = REAL_EXIT_NOW.get() {
        // SAFETY: glibc's own function.
        unsafe { real(code) }
    }
    loop {
        // SAFETY: ends the process; needs no memory.
        unsafe { libc::syscall(libc::SYS_exit_group, code) };
    }
}

/// `quick_exit`, after which the C library ends the process without a call of `_exit` that memlab could intercept.
#[unsafe(no_mangle)]
pub extern "C" fn quick_exit(code: c_int) -> ! {
    end(|recorder| end_at_once(recorder, code));
    if let Some(real) = REAL_QUICK_EXIT.get() {
        // SAFETY: glibc's own function.
        unsafe { real(code) }
    }
    _exit(code)
}

/// `_Exit`, C's name for `_exit`.
#[unsafe(no_mangle)]
pub extern "C" fn _Exit(code: c_int) -> ! {
    _exit(code)
}

/// Ends the trace by calling `how`, once.
fn end(how: impl FnOnce(&Recorder)) {
    static HAS_ENDED: AtomicBool = AtomicBool::new(false);
    // A vforked child runs in its parent's memory until it calls exec: its end is not the parent's.
    if let Some(recorder) = Recorder::current()
        && recorder.facts.pid == std::process::id()
        && !HAS_ENDED.swap(true, Ordering::AcqRel)
    {
        panics::catch(|| {
            how(recorder);
            control::remove_socket(recorder.facts.pid);
        });
    }
}
