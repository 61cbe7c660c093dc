//! Listening sockets that forked children do not keep.
//!
//! A child that inherits a socket keeps its name taken after the parent ends, and never answers, because it has none of the
//! parent's threads. The sockets are therefore closed in the child, before fork returns there. (`CLOEXEC` keeps them from
//! programs that the process starts.)

use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;
use std::time::Duration;

use rustix::io::{Errno, Result};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with};

/// Descriptors of this process's listeners; `NONE` in free slots.
///
/// Atomics, because a forked child must not take a lock.
static OPEN_LISTENERS: [AtomicI32; 256] = [const { AtomicI32::new(NONE) }; 256];
const NONE: RawFd = -1;

/// Number of processes that can wait in the queue.
///
/// Each is served at once, but processes that wait for a gate stay in it.
const LISTEN_BACKLOG: i32 = 1024;

/// A socket that listens under a name, in the process that created it.
pub(super) struct Listener {
    descriptor: RawFd,
    place: &'static AtomicI32,
}

impl Listener {
    /// Listens under a name.
    ///
    /// Returns `None` if the name is taken.
    pub(super) fn bind(address: &SocketAddrUnix) -> Result<Option<Self>> {
        static CLOSE_IN_CHILDREN: Once = Once::new();
        // SAFETY: the handler is a function of this library, which is never unloaded.
        CLOSE_IN_CHILDREN.call_once(|| unsafe {
            libc::pthread_atfork(None, None, Some(close_in_child));
        });
        let listener = Self::keep(socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)?;
        match bind(listener.borrowed(), address) {
            Ok(()) => listen(listener.borrowed(), LISTEN_BACKLOG).map(|()| Some(listener)),
            Err(Errno::ADDRINUSE) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn keep(socket: OwnedFd) -> Result<Self> {
        let descriptor = socket.as_raw_fd();
        let free =
            |place: &&AtomicI32| place.compare_exchange(NONE, descriptor, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        let place = OPEN_LISTENERS.iter().find(free).ok_or(Errno::MFILE)?;
        Ok(Self { descriptor: socket.into_raw_fd(), place })
    }

    /// Calls `answer` for each process that connects, until the listener is closed.
    pub(super) fn serve(&self, mut answer: impl FnMut(OwnedFd)) {
        loop {
            match accept_with(self.borrowed(), SocketFlags::CLOEXEC) {
                Ok(connection) => answer(connection),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                // The process has no free descriptor at the moment.
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    thread::sleep(Duration::from_millis(100));
                }
                Err(_) => return,
            }
        }
    }

    /// Stops answering.
    ///
    /// The name is free when the last reference is dropped.
    pub(super) fn close(&self) {
        if self.is_own() {
            let _ = rustix::net::shutdown(self.borrowed(), rustix::net::Shutdown::Both);
        }
    }

    /// Returns true if the descriptor belongs to this listener.
    ///
    /// In a forked child it is closed, and may already refer to another file.
    fn is_own(&self) -> bool {
        self.place.load(Ordering::Acquire) == self.descriptor
    }

    fn borrowed(&self) -> BorrowedFd<'_> {
        // SAFETY: open until `drop` in the process that made it, and not used in its children (`is_own`).
        unsafe { BorrowedFd::borrow_raw(self.descriptor) }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if self.place.compare_exchange(self.descriptor, NONE, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            // SAFETY: this process made it, and nothing has closed it.
            unsafe { libc::close(self.descriptor) };
        }
    }
}

extern "C" fn close_in_child() {
    for place in &OPEN_LISTENERS {
        let descriptor = place.swap(NONE, Ordering::AcqRel);
        if descriptor != NONE {
            // SAFETY: a listener's descriptor, which the child has a copy of and no code uses there.
            unsafe { libc::close(descriptor) };
        }
    }
}
