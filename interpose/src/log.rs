//! The log: lines appended to the trace file by any thread, through a shared mapping.
//!
//! To append is to reserve bytes with one `fetch_add`, to copy the line except its first byte, and to store that byte
//! last. A reader takes a NUL at the start of a line for "not written yet"; what is in the mapping is in the page
//! cache, so it outlives the process, however it dies.

mod place;

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use place::is_named;
pub use place::{Naming, is_refusal};

pub struct Log {
    /// The file being appended to. Replaced when a long run's trace is condensed; files it replaced stay mapped, since a
    /// thread may still be writing to them.
    current: AtomicPtr<TraceFile>,
    /// Set for good when nothing more can be written.
    failed: AtomicBool,
    lost: AtomicU64,
}

impl Log {
    /// A log that begins with the line `header`. Where not even that can be written (the disk is full), no file is left.
    pub fn create(path: &Path, naming: Naming, mapped: u64, header: &[u8]) -> io::Result<Self> {
        let file = TraceFile::create(path, naming, mapped, 0)?;
        if let Err(Refused::Failed(error)) = file.append(header) {
            if file.is_in_place() {
                let _ = std::fs::remove_file(&file.path);
            }
            return Err(error);
        }
        let file = Box::into_raw(Box::new(file));
        Ok(Self { current: AtomicPtr::new(file), failed: AtomicBool::new(false), lost: AtomicU64::new(0) })
    }

    pub fn file(&self) -> &TraceFile {
        // SAFETY: never null, never freed.
        unsafe { &*self.current.load(Ordering::Acquire) }
    }

    /// Goes on in `next`; returns the file left behind, closed.
    pub fn switch_to(&self, next: TraceFile) -> &TraceFile {
        let old = self.current.swap(Box::into_raw(Box::new(next)), Ordering::AcqRel);
        // SAFETY: never null, never freed.
        let old = unsafe { &*old };
        old.close();
        old
    }

    /// Appends one line, which ends in a newline. An empty line (one its encoder could not fit) is dropped.
    #[inline]
    pub fn append(&self, line: &[u8]) {
        if line.is_empty() || self.failed.load(Ordering::Relaxed) {
            return;
        }
        let file = self.file();
        match file.append(line) {
            Ok(()) => {}
            Err(Refused::Closed) if !ptr::eq(file, self.file()) => self.append(line), // It went on in another file.
            Err(Refused::Closed) => {
                self.lost.fetch_add(1, Ordering::Relaxed);
            }
            Err(Refused::Failed(error)) => self.give_up(&error),
        }
    }

    /// Ends the trace before the program does.
    #[cold]
    pub fn give_up(&self, error: &io::Error) {
        self.lost.fetch_add(1, Ordering::Relaxed);
        if !self.failed.swap(true, Ordering::Relaxed) {
            crate::say(&format!(
                "cannot write any more to {} ({error}): the program goes on, its trace ends here",
                self.file().path.display()
            ));
        }
    }
}

enum Refused {
    /// The process is ending, or the log went on in another file.
    Closed,
    Failed(io::Error),
}

/// How far ahead of the end a file is extended: small at first, so that short programs leave small files.
const FIRST_EXTENSION: u64 = 1 << 20;
const LARGEST_EXTENSION: u64 = 64 << 20;
const PAGE: u64 = 4096;

pub struct TraceFile {
    pub path: PathBuf,
    file: File,
    /// Device and inode of the file: programs close descriptors that are not theirs, and open their own files on them.
    inode: (u64, u64),
    /// Null where the file system refuses shared mappings: lines are then written with `pwrite`.
    base: *mut u8,
    mapped: u64,
    tail: AtomicU64,
    /// Bytes of the file that exist; 0 once the file is closed.
    ready: AtomicU64,
    extending: Mutex<()>,
    /// The extended size, which `ready` forgets on closing.
    extended: AtomicU64,
    front: u64,
    closed: AtomicBool,
    /// Bytes inside the file that were reserved by threads which then found it closed: they stay NULs.
    refused: AtomicU64,
}

// SAFETY: `base` is only written through reserved, disjoint ranges.
unsafe impl Send for TraceFile {}
// SAFETY: as above.
unsafe impl Sync for TraceFile {}

impl TraceFile {
    /// Makes the file at `path` (replacing one that is there) and maps its first `mapped` bytes. Lines are appended after
    /// the first `front` bytes, which are left to the caller.
    pub fn create(path: &Path, naming: Naming, mapped: u64, front: u64) -> io::Result<Self> {
        let (file, path) = place::open_unused(path, naming)?;
        let file = out_of_the_way(file);
        let base = if limit(libc::RLIMIT_AS) == u64::MAX {
            map(&file, mapped)
        } else {
            ptr::null_mut() // The program has to do with little address space: none of it is taken.
        };
        Ok(Self {
            path,
            inode: inode_of(&file),
            file,
            base,
            mapped,
            tail: AtomicU64::new(front),
            ready: AtomicU64::new(if base.is_null() { mapped } else { front }),
            extending: Mutex::new(()),
            extended: AtomicU64::new(front),
            front,
            closed: AtomicBool::new(false),
            refused: AtomicU64::new(0),
        })
    }

    #[inline]
    fn append(&self, line: &[u8]) -> Result<(), Refused> {
        let start = self.tail.fetch_add(line.len() as u64, Ordering::SeqCst);
        let end = start + line.len() as u64;
        if end > self.ready.load(Ordering::SeqCst) {
            self.extend(end, line.len() as u64)?;
        }
        if self.base.is_null() {
            return self.write_at(line, start).map_err(Refused::Failed);
        }
        // SAFETY: [start, end) is reserved for this call, lies inside the mapping (`extend` saw to it), and the file is
        // that long, so the pages exist.
        unsafe {
            let target = self.base.add(start as usize);
            ptr::copy_nonoverlapping(line.as_ptr().add(1), target.add(1), line.len() - 1);
            (*target.cast::<AtomicU8>()).store(line[0], Ordering::Release);
        }
        Ok(())
    }

    /// Makes the file at least `end` bytes long. `posix_fallocate` really takes the disk space, so that a full disk is
    /// an error here and not a SIGBUS at some later store.
    #[cold]
    fn extend(&self, end: u64, line_bytes: u64) -> Result<(), Refused> {
        let _one_at_a_time = self.extending.lock();
        let extended = self.extended.load(Ordering::Relaxed);
        let ready = self.ready.load(Ordering::SeqCst);
        if self.closed.load(Ordering::SeqCst) {
            let size = self.extended.load(Ordering::Relaxed).min(end);
            let start = end - line_bytes;
            self.refused.fetch_add(size.saturating_sub(start), Ordering::SeqCst);
            return Err(Refused::Closed);
        }
        if end > self.mapped.min(limit(libc::RLIMIT_FSIZE)) {
            return Err(Refused::Failed(io::Error::from_raw_os_error(libc::EFBIG)));
        }
        self.check_descriptor().map_err(Refused::Failed)?;
        if end <= ready {
            return Ok(());
        }
        let step = (extended - self.front).clamp(FIRST_EXTENSION, LARGEST_EXTENSION);
        let goal = (end + step).next_multiple_of(FIRST_EXTENSION).min(self.mapped).min(limit(libc::RLIMIT_FSIZE));
        let mut goal = goal;
        while let Err(error) = self.allocate(extended, goal) {
            // A nearly full disk still has room for some lines.
            let smaller = end.next_multiple_of(PAGE).min(self.mapped);
            if error.raw_os_error() != Some(libc::ENOSPC) || goal == smaller {
                return Err(Refused::Failed(error));
            }
            goal = smaller;
        }
        self.extended.store(goal, Ordering::Relaxed);
        self.ready.store(goal, Ordering::SeqCst);
        Ok(())
    }

    fn write_at(&self, line: &[u8], start: u64) -> io::Result<()> {
        if start + line.len() as u64 > limit(libc::RLIMIT_FSIZE) {
            return Err(io::Error::from_raw_os_error(libc::EFBIG)); // Asking the kernel would bring a deadly signal.
        }
        self.check_descriptor()?;
        self.file.write_all_at(line, start)
    }

    /// That the descriptor is still the trace's.
    fn check_descriptor(&self) -> io::Result<()> {
        if inode_of(&self.file) == self.inode {
            Ok(())
        } else {
            Err(io::Error::other("the program has closed the file"))
        }
    }

    /// Takes disk space for these bytes of the file, and makes their addresses usable.
    fn allocate(&self, from: u64, to: u64) -> io::Result<()> {
        // SAFETY: the descriptor is open for as long as `self.file`.
        match unsafe { libc::posix_fallocate(self.file.as_raw_fd(), from as i64, (to - from) as i64) } {
            0 if self.base.is_null() => Ok(()),
            0 => {
                let page = from - from % PAGE;
                // SAFETY: whole pages of the file's own mapping, which the file has now.
                let usable = unsafe {
                    let start = self.base.add(page as usize).cast();
                    libc::mprotect(start, (to - page) as usize, libc::PROT_READ | libc::PROT_WRITE)
                };
                if usable == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
            }
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// Refuses further lines and cuts the file to what was reserved.
    ///
    /// A thread that reserved before `ready` became 0 is counted in `tail`, so its bytes stay; one that reserves
    /// later sees `ready` and writes nothing. No thread can touch a page beyond the new end.
    pub fn close(&self) -> u64 {
        // Not for ever: a signal handler that ends the process may have interrupted an extension on this very thread.
        let _no_extension = self.extending.try_lock_for(Duration::from_millis(100));
        let size = self.extended.load(Ordering::Relaxed);
        self.closed.store(true, Ordering::SeqCst);
        self.ready.store(0, Ordering::SeqCst);
        let tail = self.tail.load(Ordering::SeqCst);
        let end = if self.base.is_null() { tail } else { tail.min(size) };
        // Failing to trim leaves NULs at the end, which readers skip.
        if self.check_descriptor().is_ok() {
            let _ = self.file.set_len(end.min(limit(libc::RLIMIT_FSIZE)));
        }
        end
    }

    /// Whether the file is still found under its name: somebody may have removed, renamed or replaced it.
    pub fn is_in_place(&self) -> bool {
        is_named(&self.file, &self.path)
    }

    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Bytes at the beginning that are left to the caller.
    pub fn front(&self) -> u64 {
        self.front
    }

    /// Bytes of lines appended so far.
    pub fn appended(&self) -> u64 {
        self.tail.load(Ordering::Relaxed) - self.front
    }

    /// Writes the part that was left to the caller.
    pub fn write_front(&self, bytes: &[u8]) -> io::Result<()> {
        if bytes.len() as u64 > self.front {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "there is more than fits"));
        }
        self.write_at(bytes, 0)
    }

    /// Of a closed file: whether every line reserved has been written.
    pub fn is_whole(&self) -> bool {
        if self.base.is_null() {
            return true; // `pwrite` is over when it returns, and nobody is told before.
        }
        // SAFETY: closing left the file at least this long; reading bytes that a late thread may still be writing only
        // decides whether to look again.
        let lines = unsafe {
            let end = self.tail.load(Ordering::SeqCst).min(self.extended.load(Ordering::Relaxed));
            std::slice::from_raw_parts(self.base.add(self.front as usize), (end - self.front) as usize)
        };
        memchr::memchr_iter(0, lines).count() as u64 == self.refused.load(Ordering::SeqCst)
    }

    /// Gives up the mapping of a closed file that is whole. The disk space of a deleted file is only freed then.
    ///
    /// # Safety
    ///
    /// [`is_whole`](Self::is_whole) must have said yes: no thread writes to the mapping any more.
    pub unsafe fn unmap(&self) {
        if !self.base.is_null() {
            // SAFETY: the caller's word; a closed file refuses every line before touching the mapping.
            unsafe { libc::munmap(self.base.cast(), self.mapped as usize) };
        }
    }
}

/// Maps the first bytes of a file at addresses that cannot be used before the file is that long: what looks through all memory
/// of a process, as valgrind does for leaks, would fall over each page of what is not there yet. Null where the file system
/// refuses shared mappings.
///
/// This asks the kernel itself: ThreadSanitizer takes a call of `mmap` for a write to every byte of the mapping, and does not
/// know the atomic operation by which other threads learn of it.
fn map(file: &File, bytes: u64) -> *mut u8 {
    let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice, of an open descriptor.
    let base = unsafe { libc::syscall(libc::SYS_mmap, 0, bytes, libc::PROT_NONE, flags, file.as_raw_fd(), 0) };
    if base == -1 { ptr::null_mut() } else { ptr::with_exposed_provenance_mut(base as usize) }
}

/// Moves a descriptor up, away from the low numbers that programs close and reuse wholesale.
pub fn out_of_the_way<D: AsRawFd + FromRawFd>(file: D) -> D {
    let limit = limit(libc::RLIMIT_NOFILE);
    for lowest in [1000, 500, 200] {
        if lowest < limit {
            // SAFETY: an open descriptor; the new one is owned by the returned file.
            let moved = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, lowest as libc::c_int) };
            if moved >= 0 {
                // SAFETY: just made, and nobody else's.
                return unsafe { D::from_raw_fd(moved) };
            }
        }
    }
    file
}

/// Device and inode of what a descriptor stands for; zeros if it is closed.
pub fn inode_of(descriptor: &impl AsRawFd) -> (u64, u64) {
    // SAFETY: zeros are a valid stat; the kernel fills it, or leaves it where there is no such descriptor.
    unsafe {
        let mut found: libc::stat = std::mem::zeroed();
        libc::fstat(descriptor.as_raw_fd(), &mut found);
        (found.st_dev, found.st_ino)
    }
}

/// The process's soft limit; `u64::MAX` for none.
fn limit(resource: libc::__rlimit_resource_t) -> u64 {
    let mut limits = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel fills the structure.
    match unsafe { libc::getrlimit(resource, &mut limits) } {
        0 => limits.rlim_cur, // RLIM_INFINITY is the largest value.
        _ => u64::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn temporary(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("memlab-log-{}-{name}", std::process::id()))
    }

    #[test]
    fn threads_append_whole_lines() {
        // GIVEN eight threads appending numbered lines of different lengths
        let path = temporary("threads");
        let log = Log::create(&path, Naming::AsAsked, 64 << 20, b"{}\n").unwrap();
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let log = &log;
                scope.spawn(move || {
                    for number in 0..5000 {
                        log.append(format!("[{thread},{number},\"{}\"]\n", "x".repeat(number % 50)).as_bytes());
                    }
                });
            }
        });
        // WHEN the log is closed
        let end = log.file().close();
        // THEN the file holds each line once, whole, each thread's in order, and nothing after them
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(text.len() as u64, end);
        let mut next = [0; 8];
        for line in text.lines().skip(1) {
            let (thread, number, filler): (usize, usize, String) = serde_json::from_str(line).unwrap();
            assert_eq!((number, filler.len()), (next[thread], number % 50));
            next[thread] += 1;
        }
        assert_eq!(next, [5000; 8]);
    }

    #[test]
    fn a_closed_log_takes_nothing_more() {
        let path = temporary("closed");
        let log = Log::create(&path, Naming::AsAsked, 1 << 20, b"{}\n").unwrap();
        log.append(b"[1]\n");
        log.file().close();
        log.append(b"[2]\n");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(text, "{}\n[1]\n");
        assert_eq!(log.lost.load(Ordering::Relaxed), 1);
    }
}
