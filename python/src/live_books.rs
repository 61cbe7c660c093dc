//! The live books of this process, and the thread that keeps them up to date while tools are in use.

use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::time::Duration;

use memlab_live::Books;
use parking_lot::{Mutex, MutexGuard};

use crate::library::Library;
use memlab_protocol::c_api::Position;

/// Interval at which the thread reads.
///
/// The library need only keep the lines recorded meanwhile.
const PAUSE: Duration = Duration::from_millis(250);
/// Bytes read at once.
const BUFFER: usize = 1 << 20;
/// Number of waiting marks beyond which they are processed at once.
const MARKS: usize = 1 << 14;

/// The books, and the position up to which the recording was read.
#[derive(Default)]
pub struct LiveBooks {
    pub books: Books,
    position: Position,
    buffer: Vec<u8>,
}

/// Books of the process `PID`.
///
/// A forked child starts its own, because a thread of the parent may have held the lock.
static BOOKS: AtomicPtr<Mutex<LiveBooks>> = AtomicPtr::new(std::ptr::null_mut());
static PID: AtomicU32 = AtomicU32::new(0);

/// Starts keeping books, from everything recorded so far.
///
/// Idempotent.
pub fn start() {
    if kept().is_some() || Library::get().is_none() {
        return;
    }
    let books = Box::into_raw(Box::new(Mutex::new(LiveBooks::default())));
    BOOKS.store(books, Ordering::Release);
    PID.store(std::process::id(), Ordering::Release);
    let pump = || {
        while kept().is_some() {
            std::thread::sleep(PAUSE);
            if let Some(mut live) = lock() {
                live.read();
            }
        }
    };
    // Without the thread, the books are read when a tool queries them.
    drop(std::thread::Builder::new().name("memlab-books".to_owned()).spawn(pump));
}

/// Drops the books.
///
/// Their lock is leaked, because a thread may be about to take it.
pub fn stop() {
    if let Some(mut live) = lock() {
        *live = LiveBooks::default();
    }
    PID.store(0, Ordering::Release);
}

/// Returns true if books are kept.
pub fn is_active() -> bool {
    kept().is_some()
}

fn kept() -> Option<&'static Mutex<LiveBooks>> {
    // SAFETY: null, or never freed.
    let books = unsafe { BOOKS.load(Ordering::Acquire).as_ref() };
    books.filter(|_| PID.load(Ordering::Acquire) == std::process::id())
}

fn lock() -> Option<MutexGuard<'static, LiveBooks>> {
    kept().map(|books| books.lock())
}

/// Returns the books, after reading everything recorded until now.
pub fn current() -> Option<MutexGuard<'static, LiveBooks>> {
    let mut live = lock()?;
    live.read();
    Some(live)
}

/// Returns the books without reading.
pub fn unread() -> Option<MutexGuard<'static, LiveBooks>> {
    lock()
}

impl LiveBooks {
    fn read(&mut self) {
        let Some(library) = Library::get() else { return };
        if self.buffer.is_empty() {
            self.buffer.resize(BUFFER, 0);
        }
        loop {
            let (bytes, restarted) = library.read(&mut self.position, &mut self.buffer);
            if restarted {
                self.books.restart();
            }
            if bytes > self.buffer.len() {
                self.buffer.resize(bytes, 0);
                continue;
            }
            if bytes == 0 {
                break;
            }
            self.books.take(&self.buffer[..bytes], self.position.bytes - bytes as u64);
        }
        self.books.pass_marks(self.position.bytes);
    }

    /// Processes marks if many are waiting.
    pub fn read_if_many_marks(&mut self) {
        if self.books.waiting_marks() >= MARKS {
            self.read();
        }
    }
}
