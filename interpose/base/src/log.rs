//! The log: any thread appends lines to the trace file through a shared mapping.
//!
//! Appending reserves bytes with one `fetch_add`, copies the line except its first byte, and stores that byte last. A reader
//! takes a NUL at the start of a line for "not written yet". The mapping's contents are in the page cache, so they survive
//! the process, however it dies.

pub mod file;
pub mod live;
pub mod trace_path;

use std::io;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, Ordering};

use crate::stderr::print_message;
use file::{Room, TraceFile, WriteRefusal};
use trace_path::Naming;

pub struct Log {
    /// The file being appended to.
    ///
    /// Compacting the trace of a long run replaces it. A thread may reach a file that was replaced long ago; it finds that
    /// file closed and takes the current one. So the structure is never freed, but its mapping and descriptor are.
    current: AtomicPtr<TraceFile>,
    state: AtomicU8,
    /// Events dropped for lack of room.
    lost: AtomicU64,
}

/// Write levels, from lenient to strict: all lines; definitions and the ending; only the ending; nothing.
const ALL: u8 = 0;
const DEFINITIONS: u8 = 1;
const ENDING: u8 = 2;
/// Permanent.
const NO_LINES: u8 = 3;

impl Log {
    /// Creates a log that begins with the line `header`, in a file of at most `most` bytes.
    ///
    /// If not even that line can be written (the disk is full), the file is removed.
    pub fn create(path: &Path, naming: Naming<'_>, most: u64, header: &[u8]) -> io::Result<Self> {
        let file = TraceFile::create(path, naming, most, 0)?;
        if let Err(WriteRefusal::Failed(error)) = file.append(header) {
            if file.is_in_place() {
                let _ = std::fs::remove_file(&file.path);
            }
            return Err(error);
        }
        let file = Box::into_raw(Box::new(file));
        Ok(Self { current: AtomicPtr::new(file), state: AtomicU8::new(ALL), lost: AtomicU64::new(0) })
    }

    #[inline]
    pub fn file(&self) -> &'static TraceFile {
        // SAFETY: never null, never freed.
        unsafe { &*self.current.load(Ordering::Acquire) }
    }

    /// Switches to the file `next`; returns the replaced file, closed.
    pub fn switch_to(&self, next: TraceFile) -> &'static TraceFile {
        next.follows(self.file());
        let old = self.current.swap(Box::into_raw(Box::new(next)), Ordering::AcqRel);
        // SAFETY: never null, never freed.
        let old = unsafe { &*old };
        old.close();
        self.resume();
        old
    }

    /// Appends one line, which ends in a newline.
    ///
    /// Drops an empty line, which its encoder could not fit.
    #[inline]
    pub fn append(&self, line: &[u8]) {
        let state = self.state.load(Ordering::Relaxed);
        if line.is_empty() || state != ALL && !self.accepts_when_full(state, line) {
            return;
        }
        let file = self.file();
        match file.append(line) {
            Ok(Room::Events) => {}
            Ok(Room::Definitions) => self.restrict(DEFINITIONS),
            Ok(Room::Ending) => self.restrict(ENDING),
            Err(WriteRefusal::Closed) if !ptr::eq(file, self.file()) => self.append(line), // It continues in another file.
            Err(WriteRefusal::Closed) => {}
            Err(WriteRefusal::Full) => {
                self.restrict(ENDING);
                self.lost.fetch_add(1, Ordering::Relaxed);
            }
            Err(WriteRefusal::Failed(error)) => self.give_up(&error),
        }
    }

    /// Returns true if a line is written although the file is nearly full.
    #[cold]
    fn accepts_when_full(&self, state: u8, line: &[u8]) -> bool {
        let is_ending = [b"[\"end\"".as_slice(), b"[\"lost\""].iter().any(|tag| line.starts_with(tag));
        let is_rare =
            || [b"{".as_slice(), b"[\"step\"", b"[\"oom\"", b"[\"moved\""].iter().any(|tag| line.starts_with(tag));
        match state {
            DEFINITIONS if is_ending || is_rare() => true,
            ENDING if is_ending => true,
            NO_LINES => false,
            _ => {
                self.lost.fetch_add(1, Ordering::Relaxed);
                false
            }
        }
    }

    #[cold]
    fn restrict(&self, state: u8) {
        self.state.fetch_max(state, Ordering::Relaxed);
    }

    /// Accepts all lines again: the file has room.
    pub fn resume(&self) {
        for state in [DEFINITIONS, ENDING] {
            let _ = self.state.compare_exchange(state, ALL, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Returns true while events are dropped for lack of room.
    pub fn is_full(&self) -> bool {
        matches!(self.state.load(Ordering::Relaxed), DEFINITIONS | ENDING)
    }

    /// Returns true once [`give_up`](Self::give_up) has ended the trace.
    pub fn has_ended(&self) -> bool {
        self.state.load(Ordering::Relaxed) == NO_LINES
    }

    /// Number of events dropped since the last call.
    pub fn take_lost(&self) -> u64 {
        self.lost.swap(0, Ordering::Relaxed)
    }

    /// Accepts no more lines, in a copy of the process: its lines would overwrite those of the process, which shares the
    /// mapping of the file.
    pub fn stop_in_copy(&self) {
        self.restrict(NO_LINES);
    }

    /// Ends the trace while the program goes on.
    #[cold]
    pub fn give_up(&self, error: &io::Error) {
        if self.state.swap(NO_LINES, Ordering::Relaxed) != NO_LINES {
            print_message(&format!(
                "cannot write to {} any longer ({error}): the program continues, its trace ends here",
                self.file().path.display()
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn temporary(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("memlab-log-{}-{name}", std::process::id()))
    }

    #[test]
    fn threads_append_whole_lines() {
        // GIVEN eight threads appending numbered lines of different lengths
        let path = temporary("threads");
        let log = Log::create(&path, Naming::AsAsked { run: None }, 64 << 20, b"{}\n").unwrap();
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
        // THEN the file contains each line once and whole, the lines of each thread in order, and nothing after them
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
    fn a_closed_log_accepts_no_lines() {
        let path = temporary("closed");
        let log = Log::create(&path, Naming::AsAsked { run: None }, 1 << 20, b"{}\n").unwrap();
        log.append(b"[1]\n");
        log.file().close();
        log.append(b"[2]\n");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(text, "{}\n[1]\n");
    }

    #[test]
    fn a_log_that_gives_up_has_ended_and_counts_no_events() {
        let path = temporary("given-up");
        let log = Log::create(&path, Naming::AsAsked { run: None }, 1 << 20, b"{}\n").unwrap();
        assert!(!log.has_ended());
        // WHEN a log gives up THEN it has ended, accepts no more lines and counts no more losses
        log.give_up(&io::Error::other("the file was removed"));
        log.append(b"[1]\n");
        assert!(log.has_ended() && !log.is_full());
        assert_eq!(log.take_lost(), 0);
        log.file().close();
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_full_log_drops_events_and_counts_them() {
        // GIVEN a log of 4 MiB, and eight threads that append far more than fits
        let (path, most) = (temporary("full"), 4 << 20);
        let log = Log::create(&path, Naming::AsAsked { run: None }, most, b"{}\n").unwrap();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    (0..20_000).for_each(|_| log.append(b"[\"a\",1834022117,1,0,140213447884800,4718592]\n"))
                });
            }
        });
        // THEN further events are counted, definitions are still written, and finally only the ending
        let full = log.file().taken();
        assert!(log.is_full() && full < most - (200 << 10), "{full}");
        (0..20_000).for_each(|_| log.append(b"{\"stack\":5,\"parent\":4,\"frame\":12}\n"));
        log.append(b"[\"end\",1,0,null]\n");
        log.file().close();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(text.len() as u64 <= most);
        let count = |start: &str| text.lines().filter(|line| line.starts_with(start)).count() as u64;
        assert_eq!((count("[\"end\""), text.lines().any(|line| line.contains('\0'))), (1, false));
        assert!(count("{\"stack\"") > 1000);
        assert_eq!(log.take_lost(), 180_000 - count("[\"a\"") - count("{\"stack\""));
    }

    #[test]
    fn a_replaced_file_is_released_once_it_is_whole() {
        // GIVEN threads that append while the log switches from file to file
        let (path, beside) = (temporary("left"), temporary("left.next"));
        let log = Log::create(&path, Naming::AsAsked { run: None }, 64 << 20, b"{}\n").unwrap();
        let (mut lines, stop) = (0, std::sync::atomic::AtomicBool::new(false));
        let held =
            || std::fs::read_dir("/proc/self/fd").unwrap().flatten().filter_map(|entry| entry.path().read_link().ok());
        std::thread::scope(|scope| {
            let append = || {
                let mut count = 0;
                while !stop.load(Ordering::Relaxed) {
                    log.append(b"[\"a\"]\n");
                    count += 1;
                    if count % 100 == 0 {
                        std::thread::sleep(std::time::Duration::from_micros(50));
                    }
                }
                count
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(append)).collect();
            let mut total = 0;
            for _ in 0..20 {
                std::thread::sleep(std::time::Duration::from_millis(1));
                let old = log.switch_to(TraceFile::create(&beside, Naming::Exact, 64 << 20, 4096).unwrap());
                while !old.is_whole() {
                    std::thread::yield_now();
                }
                // THEN each line is in one of the files, and every replaced file can be released
                total += std::fs::read(&path).unwrap().iter().filter(|byte| **byte == b'[').count();
                // SAFETY: the file is closed and whole: no thread writes to it any more.
                unsafe { old.release() };
                std::fs::rename(&beside, &path).unwrap();
                let ours = path.to_string_lossy();
                assert_eq!(held().filter(|target| target.to_string_lossy().starts_with(&*ours)).count(), 1);
            }
            stop.store(true, Ordering::Relaxed);
            lines = threads.into_iter().map(|thread| thread.join().unwrap()).sum::<usize>() - total;
        });
        log.file().close();
        let left = std::fs::read(&path).unwrap().iter().filter(|byte| **byte == b'[').count();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(lines as u64, left as u64 + log.take_lost());
    }
}
