//! One file of the trace: reserves room, writes lines, and limits its size.

mod ahead;

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::Resource;

use super::trace_path::{self, Naming, is_named};
use crate::descriptors::{inode_of, move_up, soft_limit};
use crate::waker::Waker;

/// Thread that compacts the trace.
///
/// Woken when a file has grown large.
pub static COMPACTING_THREAD: Waker = Waker::new();

/// Reason for refusing a line.
pub enum WriteRefusal {
    /// The process is ending, or the log has switched to another file.
    Closed,
    /// The file has reached its maximum size, and the last room was taken before this line arrived.
    Full,
    Failed(io::Error),
}

/// Room left in a file after a line.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Room {
    Events,
    /// Definitions, which later events refer to.
    Definitions,
    /// The lines that end the trace.
    Ending,
}

/// Initial extension of the file beyond its last line.
///
/// It is small, so that short programs leave small files.
pub const FIRST_EXTENSION: u64 = 1 << 20;
const MAX_EXTENSION: u64 = 64 << 20;
const PAGE: u64 = 4096;
/// Room for the lines of threads that checked while room was left.
const MARGIN: u64 = 64 << 10;

/// Bytes of a file besides keyframe and events: its header, and the reserve at its end.
pub const SLACK: u64 = 64 << 10;

/// The `end` of a file that is still open.
const NOT_CLOSED: u64 = u64::MAX;

pub struct TraceFile {
    pub path: PathBuf,
    /// Closed only by [`TraceFile::release`].
    file: ManuallyDrop<File>,
    /// Device and inode of the file.
    ///
    /// Programs close descriptors that are not theirs, and open files under the same numbers.
    inode: (u64, u64),
    /// Null if the file system refuses shared mappings: lines are then written with `pwrite`.
    base: *mut u8,
    mapped: u64,
    tail: AtomicU64,
    /// Bytes that exist in the file; 0 once the file is closed.
    ready: AtomicU64,
    extending: Mutex<()>,
    /// Extended size of the file.
    ///
    /// It stays when closing sets `ready` to 0.
    extended: AtomicU64,
    front: u64,
    /// The file's maximum size.
    most: AtomicU64,
    /// Size at which the file is due for compaction.
    large: AtomicU64,
    /// The size of the closed file; [`NOT_CLOSED`] before.
    end: AtomicU64,
    /// Bytes inside the file that were reserved for lines and then refused: they stay NULs.
    refused: AtomicU64,
    released: AtomicBool,
    /// The file that this one replaced.
    previous: AtomicPtr<TraceFile>,
    /// Position of the file's first byte in the whole recording.
    ///
    /// It is greater than the position of any byte of the replaced file.
    stream_start: AtomicU64,
    /// True if the first `front` bytes are complete.
    front_is_written: AtomicBool,
    in_memory: bool,
    /// Position that [`TraceFile::fault_ahead`] has reached, and the tail at that time.
    faulted: AtomicU64,
    seen_tail: AtomicU64,
}

// SAFETY: `base` is written only through reserved, disjoint ranges.
unsafe impl Send for TraceFile {}
// SAFETY: `base` is written only through reserved, disjoint ranges; all other fields are atomics or locks.
unsafe impl Sync for TraceFile {}

impl TraceFile {
    /// Creates the file at `path` and maps its first `mapped` bytes.
    ///
    /// Lines are appended after the first `front` bytes, which [`write_front`](Self::write_front) fills.
    pub fn create(path: &Path, naming: Naming<'_>, mapped: u64, front: u64) -> io::Result<Self> {
        let in_memory = path.as_os_str() == trace_path::IN_MEMORY;
        let (file, path) = trace_path::open_unused(path, naming)?;
        let file = move_up(file);
        let path = if in_memory { trace_path::path_of_descriptor(&file) } else { path };
        let base = if soft_limit(Resource::As) == u64::MAX {
            map(&file, mapped)
        } else {
            ptr::null_mut() // The program's address space is limited: use none of it.
        };
        Ok(Self {
            path,
            inode: inode_of(&file),
            file: ManuallyDrop::new(file),
            base,
            mapped,
            tail: AtomicU64::new(front),
            ready: AtomicU64::new(front),
            extending: Mutex::new(()),
            extended: AtomicU64::new(front),
            front,
            most: AtomicU64::new(mapped),
            large: AtomicU64::new(u64::MAX),
            end: AtomicU64::new(NOT_CLOSED),
            refused: AtomicU64::new(0),
            released: AtomicBool::new(false),
            previous: AtomicPtr::new(ptr::null_mut()),
            stream_start: AtomicU64::new(0),
            front_is_written: AtomicBool::new(front == 0),
            in_memory,
            faulted: AtomicU64::new(0),
            seen_tail: AtomicU64::new(front),
        })
    }

    #[inline]
    pub fn append(&self, line: &[u8]) -> Result<Room, WriteRefusal> {
        let start = self.tail.fetch_add(line.len() as u64, Ordering::SeqCst);
        let end = start + line.len() as u64;
        let mut room = Room::Events;
        if end > self.ready.load(Ordering::SeqCst) {
            room = self.extend(end, line.len() as u64)?;
        }
        if self.base.is_null() {
            return self.write_at(line, start).map(|()| room).map_err(WriteRefusal::Failed);
        }
        // SAFETY: [start, end) is reserved for this call and inside the mapping (`extend` checks that), and the file is
        // that long, so the pages exist; the mapping stays until every line reserved before closing is written.
        unsafe {
            let target = self.base.add(start as usize);
            ptr::copy_nonoverlapping(line.as_ptr().add(1), target.add(1), line.len() - 1);
            (*target.cast::<AtomicU8>()).store(line[0], Ordering::Release);
        }
        Ok(room)
    }

    /// Part of the maximum size that is reserved for definitions and for the last lines.
    fn reserve(most: u64) -> u64 {
        (most / 16).clamp(4 * MARGIN, 64 * MARGIN)
    }

    /// Makes the file at least `end` bytes long.
    ///
    /// `posix_fallocate` allocates the disk space, so a full disk causes an error here and not a SIGBUS at a later store.
    #[cold]
    fn extend(&self, end: u64, line_bytes: u64) -> Result<Room, WriteRefusal> {
        let _one_at_a_time = self.extending.lock();
        let extended = self.extended.load(Ordering::Relaxed);
        let closed_at = self.end.load(Ordering::SeqCst);
        if closed_at != NOT_CLOSED {
            self.refused.fetch_add(closed_at.min(end).saturating_sub(end - line_bytes), Ordering::SeqCst);
            return Err(WriteRefusal::Closed);
        }
        let largest = self.mapped.min(soft_limit(Resource::Fsize));
        if end > largest {
            return Err(WriteRefusal::Failed(io::Error::from_raw_os_error(libc::EFBIG)));
        }
        self.check_descriptor().map_err(WriteRefusal::Failed)?;
        let most = self.most.load(Ordering::Relaxed);
        let for_events = most.saturating_sub(Self::reserve(self.mapped));
        let for_definitions = most.saturating_sub(MARGIN);
        if end >= self.large.load(Ordering::Relaxed) {
            COMPACTING_THREAD.wake();
        }
        let (room, bound) = if end <= for_events {
            (Room::Events, for_events)
        } else if end <= for_definitions {
            (Room::Definitions, for_definitions)
        } else if end <= most {
            (Room::Ending, most)
        } else {
            self.refused.fetch_add(line_bytes, Ordering::SeqCst);
            return Err(WriteRefusal::Full);
        };
        if end <= self.ready.load(Ordering::SeqCst) {
            return Ok(room);
        }
        let step = (extended - self.front).clamp(FIRST_EXTENSION, MAX_EXTENSION).min(self.mapped / 8);
        let step = if room == Room::Events { step } else { PAGE };
        let mut goal = (end + step).next_multiple_of(FIRST_EXTENSION.min(step)).min(bound).min(largest);
        while let Err(error) = self.allocate(extended, goal) {
            // A nearly full disk still has room for some lines.
            let smaller = end.next_multiple_of(PAGE).min(bound).min(largest);
            if error.raw_os_error() != Some(libc::ENOSPC) || goal == smaller {
                return Err(WriteRefusal::Failed(error));
            }
            goal = smaller;
        }
        self.extended.store(goal, Ordering::Relaxed);
        self.ready.store(goal, Ordering::SeqCst);
        Ok(room)
    }

    fn write_at(&self, line: &[u8], start: u64) -> io::Result<()> {
        if start + line.len() as u64 > soft_limit(Resource::Fsize) {
            return Err(io::Error::from_raw_os_error(libc::EFBIG)); // The kernel would send SIGXFSZ.
        }
        self.check_descriptor()?;
        self.file.write_all_at(line, start)
    }

    /// Fails if the descriptor no longer refers to the trace.
    fn check_descriptor(&self) -> io::Result<()> {
        if inode_of(&*self.file) == self.inode {
            Ok(())
        } else {
            Err(io::Error::other("the program has closed the file"))
        }
    }

    /// Allocates disk space for these bytes of the file, and makes their addresses accessible.
    fn allocate(&self, from: u64, to: u64) -> io::Result<()> {
        if self.base.is_null() {
            return Ok(()); // `pwrite` reports a full disk.
        }
        // SAFETY: the descriptor is open: nothing closes it before the file is closed and whole.
        match unsafe { libc::posix_fallocate(self.file.as_raw_fd(), from as i64, (to - from) as i64) } {
            0 => {
                let page = from - from % PAGE;
                // SAFETY: whole pages of the file's own mapping, for which the file now has disk space.
                let usable = unsafe {
                    let start = self.base.add(page as usize).cast();
                    libc::mprotect(start, (to - page) as usize, libc::PROT_READ | libc::PROT_WRITE)
                };
                if usable == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
            }
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// Refuses further lines and truncates the file to the reserved bytes.
    ///
    /// A thread that reserved before `ready` became 0 is counted in `tail`, so its bytes stay. A thread that reserves later
    /// sees `ready` and writes nothing. No thread can touch a page beyond the new end.
    pub fn close(&self) -> u64 {
        // Uses a timeout: a signal handler that ends the process may have interrupted an extension on this same thread.
        let _no_extension = self.extending.try_lock_for(Duration::from_millis(100));
        if self.is_closed() {
            return self.end.load(Ordering::SeqCst);
        }
        let size = self.extended.load(Ordering::Relaxed);
        self.ready.store(0, Ordering::SeqCst);
        let end = self.tail.load(Ordering::SeqCst).min(size);
        self.end.store(end, Ordering::SeqCst);
        // If truncating fails, NULs stay at the end; readers skip them.
        if self.check_descriptor().is_ok() {
            let _ = self.file.set_len(end.min(soft_limit(Resource::Fsize)));
        }
        end
    }

    /// Returns true if the file still has its name.
    ///
    /// It may have been removed, renamed or replaced.
    pub fn is_in_place(&self) -> bool {
        self.in_memory || is_named(&self.file, &self.path)
    }

    /// Returns true if the trace is kept in memory: its path is that of a descriptor of this process.
    pub fn is_in_memory(&self) -> bool {
        self.in_memory
    }

    pub fn is_closed(&self) -> bool {
        self.end.load(Ordering::SeqCst) != NOT_CLOSED
    }

    /// Bytes at the beginning that are not for lines.
    pub fn front(&self) -> u64 {
        self.front
    }

    /// The disk space of the file, front included.
    pub fn taken(&self) -> u64 {
        match self.end.load(Ordering::SeqCst) {
            NOT_CLOSED => self.extended.load(Ordering::Relaxed),
            end => end,
        }
    }

    /// Bytes reserved so far, front included.
    pub fn tail(&self) -> u64 {
        self.tail.load(Ordering::Relaxed)
    }

    /// Sets the maximum size to `most` bytes, front included.
    ///
    /// From `large` bytes on, the file is due for compaction.
    pub fn bound(&self, most: u64, large: u64) {
        self.most.store(most, Ordering::Relaxed);
        self.large.store(large, Ordering::Relaxed);
    }

    /// Limits the file when no other is being filled, so that its compacted successor also fits in `trace_max` bytes.
    ///
    /// `keyframe` is the size of this file's keyframe; `left` is the size of replaced files that still exist.
    pub fn bound_alone(&self, trace_max: u64, keyframe: u64, left: u64) {
        let next = (keyframe + keyframe / 2 + 2 * SLACK).max(trace_max / 4);
        // Compact only when that frees enough space.
        let large = (trace_max / 2).max(self.front() + trace_max / 16);
        self.bound(trace_max.saturating_sub(next).saturating_sub(left), large);
    }

    pub fn is_large(&self) -> bool {
        self.tail() >= self.large.load(Ordering::Relaxed)
    }

    /// Writes the first bytes of the file.
    ///
    /// A NUL stays between them and the lines.
    pub fn write_front(&self, bytes: &[u8]) -> io::Result<()> {
        if bytes.len() as u64 >= self.front {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "the data does not fit"));
        }
        self.write_at(bytes, 0)
    }

    /// Marks the first bytes of the file as complete: they contain the state at the end of the replaced file.
    pub fn front_is_complete(&self) {
        self.front_is_written.store(true, Ordering::Release);
    }

    /// Returns true if every reserved line of a closed file has been written.
    pub fn is_whole(&self) -> bool {
        let end = self.end.load(Ordering::SeqCst);
        if end == NOT_CLOSED {
            return false;
        }
        let nuls = if self.base.is_null() {
            match self.check_descriptor().and_then(|()| self.count_nuls(end)) {
                Ok(nuls) => nuls,
                Err(_) => return false,
            }
        } else {
            let (front, length) = (self.front as usize, (end - self.front) as usize);
            // SAFETY: closing left the file this long; a late thread may still be writing the bytes read here, which
            // only decides whether to check again.
            let lines = unsafe { std::slice::from_raw_parts(self.base.add(front), length) };
            memchr::memchr_iter(0, lines).count()
        };
        nuls as u64 == self.refused.load(Ordering::SeqCst)
    }

    fn count_nuls(&self, end: u64) -> io::Result<usize> {
        let (mut nuls, mut from, mut piece) = (0, self.front, vec![0; 1 << 20]);
        while from < end {
            let length = (end - from).min(piece.len() as u64) as usize;
            self.file.read_exact_at(&mut piece[..length], from)?;
            nuls += memchr::memchr_iter(0, &piece[..length]).count();
            from += length as u64;
        }
        Ok(nuls)
    }

    /// Releases the mapping and the descriptor of a closed file that is whole.
    ///
    /// Only then does the system free the disk space of a deleted file.
    ///
    /// # Safety
    ///
    /// [`is_whole`](Self::is_whole) must have returned true: no thread writes to the file any more, and a thread that
    /// reaches it later finds it closed and touches neither.
    pub unsafe fn release(&self) {
        if self.released.swap(true, Ordering::AcqRel) {
            return;
        }
        if !self.base.is_null() {
            // SAFETY: the file's own mapping; the caller promises that no thread writes to it any more.
            unsafe { libc::munmap(self.base.cast(), self.mapped as usize) };
        }
        self.close_descriptor();
    }

    fn close_descriptor(&self) {
        // The program may have closed it and reused its number.
        if self.check_descriptor().is_ok() {
            // SAFETY: the descriptor is still the file's, and no longer used.
            unsafe { libc::close(self.file.as_raw_fd()) };
        }
    }

    /// Records which file this one replaces.
    pub fn follows(&self, previous: &'static Self) {
        let start = previous.stream_start() + previous.mapped;
        self.stream_start.store(start, Ordering::Release);
        self.previous.store(ptr::from_ref(previous).cast_mut(), Ordering::Release);
    }

    /// Called in a forked child: runs [`reset_in_child`](Self::reset_in_child) for this file and all files that it replaced.
    pub fn reset_all_in_child(&self) {
        self.reset_in_child();
        let mut file = self.previous();
        while let Some(before) = file {
            before.reset_in_child();
            file = before.previous();
        }
    }

    /// Releases the parent's file in a forked child, which would otherwise hold its disk space and lock.
    ///
    /// If a signal handler that interrupted an append forks, the append may continue here. It then writes to the child's own
    /// memory.
    fn reset_in_child(&self) {
        if self.released.swap(true, Ordering::AcqRel) {
            return;
        }
        if !self.base.is_null() {
            // SAFETY: replaces the child's own mapping of the file by an empty one, at the same place.
            unsafe {
                libc::mmap(
                    self.base.cast(),
                    self.mapped as usize,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED,
                    -1,
                    0,
                )
            };
        }
        self.close_descriptor();
    }
}

/// For readers inside the process.
impl TraceFile {
    /// The file that this one replaced.
    pub fn previous(&self) -> Option<&'static Self> {
        // SAFETY: null, or a file of a log, which is never freed.
        unsafe { self.previous.load(Ordering::Acquire).as_ref() }
    }

    /// Position of the file's first byte in the recording.
    #[inline]
    pub fn stream_start(&self) -> u64 {
        self.stream_start.load(Ordering::Acquire)
    }

    /// Returns true if the file's first bytes can be read.
    pub fn has_front(&self) -> bool {
        self.front_is_written.load(Ordering::Acquire)
    }

    pub fn is_released(&self) -> bool {
        self.released.load(Ordering::Acquire)
    }

    /// Copies bytes of the file in their current state; returns 0 if it cannot be read.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> usize {
        if self.check_descriptor().is_err() {
            return 0;
        }
        self.file.read_at(buffer, offset).unwrap_or(0)
    }

    /// Returns the mapped lines from `offset` up to the first unwritten one; `None` if the file is not mapped.
    ///
    /// # Safety
    ///
    /// The file must not be released while the slice is in use.
    pub unsafe fn written_lines(&self, offset: u64, most: usize) -> Option<&[u8]> {
        if self.base.is_null() {
            return None;
        }
        let reserved = self.tail.load(Ordering::SeqCst).min(self.extended.load(Ordering::Acquire));
        let mut end = offset;
        while end < reserved && (end - offset) < most as u64 {
            // SAFETY: below `reserved`, so the page exists and is readable; the byte is written atomically.
            let first = unsafe { (*self.base.add(end as usize).cast::<AtomicU8>()).load(Ordering::Acquire) };
            if first == 0 {
                break;
            }
            // SAFETY: the bytes up to `reserved` exist. The line begins with its first byte, which is stored last, so all
            // of the line is written; what follows it may be being written and is not used.
            let rest = unsafe { std::slice::from_raw_parts(self.base.add(end as usize), (reserved - end) as usize) };
            let Some(length) = memchr::memchr(b'\n', rest) else { break };
            end += length as u64 + 1;
        }
        // SAFETY: whole lines, which nothing writes to any more.
        Some(unsafe { std::slice::from_raw_parts(self.base.add(offset as usize), (end - offset) as usize) })
    }
}

/// Maps the first bytes of a file without access.
///
/// Pages beyond its end would fault in tools that read all memory of the process, as valgrind does to find leaks. Access is
/// enabled as the file is extended. Returns null if the file system refuses shared mappings.
///
/// Uses the system call directly. ThreadSanitizer treats a call of `mmap` as a write to every byte of the mapping, and does
/// not know the atomic operation through which other threads learn of the mapping.
fn map(file: &File, bytes: u64) -> *mut u8 {
    // A variadic function reads whole registers.
    let [protection, flags] = [libc::PROT_NONE, libc::MAP_SHARED | libc::MAP_NORESERVE].map(i64::from);
    let (address, descriptor, offset) = (0_i64, i64::from(file.as_raw_fd()), 0_i64);
    // SAFETY: a new mapping at an address that the kernel chooses, of an open descriptor.
    let base = unsafe { libc::syscall(libc::SYS_mmap, address, bytes, protection, flags, descriptor, offset) };
    if base == -1 { ptr::null_mut() } else { ptr::with_exposed_provenance_mut(base as usize) }
}

impl Drop for TraceFile {
    fn drop(&mut self) {
        // Applies only to a file that was never part of a log.
        // SAFETY: no other thread has it.
        unsafe { self.release() };
    }
}
