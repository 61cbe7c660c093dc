//! libmemlab.so: runs inside the user's process, sees every allocation of GPU memory, and says who asked for it.
//!
//! The way of an event: a hook ([`torch::allocator`], [`cuda::driver`], [`cuda::runtime`]) → [`attribution`] → a line
//! appended by the [`recorder`] to the [`log`]. Nothing here may change the program's result: no panic crosses a hook,
//! no lock is taken that Python or PyTorch can hold, and a part that cannot work switches itself off with one line on
//! stderr.

mod api;
mod attribution;
mod condense;
mod config;
mod control;
mod cuda;
mod intern;
mod late;
mod lifecycle;
mod limit;
mod log;
mod mover;
mod python;
mod recorder;
mod request;
mod sampler;
mod sources;
mod symbols;
mod thread;
mod torch;

use std::sync::OnceLock;

use config::Config;

static CONFIG: OnceLock<Config> = OnceLock::new();

/// What the environment asked for when the library was loaded.
fn config() -> &'static Config {
    CONFIG.get_or_init(Config::from_environment)
}

/// Whether memlab records at all (`MEMLAB=0` switches it off).
fn enabled() -> bool {
    // Hooks may be called before the constructor has run, when the environment cannot be read yet.
    CONFIG.get().is_some_and(|config| config.enabled)
}

/// Tells the user something, in one line on stderr. Nobody may be reading there any more: a pipe that stays full is not
/// waited for, and the signal that a closed one would bring is kept from the program.
fn say(what: &str) {
    const PATIENCE_MS: i32 = 100;
    let line = format!("memlab: {what}\n");
    let mut stderr = libc::pollfd { fd: libc::STDERR_FILENO, events: libc::POLLOUT, revents: 0 };
    // SAFETY: one valid entry.
    if unsafe { libc::poll(&mut stderr, 1, PATIENCE_MS) } == 0 {
        return;
    }
    // SAFETY: plain signal and write calls on this thread; its mask is as before afterwards.
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

/// Runs a part of memlab so that a bug in it ends in a message and not in the program's death. `None` if it panicked.
fn quietly<T>(part: impl FnOnce() -> T) -> Option<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(part)).ok()
}

extern "C" fn constructor() {
    if config().enabled {
        lifecycle::loaded();
        quietly(|| limit::start(config()));
        mover::loaded();
        late::patch_if_loaded_late();
    }
}

/// Has the dynamic linker run [`constructor`] when it loads the library.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;
