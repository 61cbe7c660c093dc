//! Reads the recording inside the process while it is written.
//!
//! The only reader is the Python package's tools. A file that the log has replaced stays mapped while the reader is in it,
//! unless the log must be replaced again.

use std::ptr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::Log;
use super::file::TraceFile;
use crate::locks;

/// Position of the reader.
static READER: Mutex<Reader> = Mutex::new(Reader { file: None, hole: None });

struct Reader {
    file: Option<&'static TraceFile>,
    /// Time since which a reserved line is missing, and its position.
    hole: Option<(Instant, u64)>,
}

/// Attempts to read a line that another thread has reserved and not yet written.
const UNFINISHED_LINE_ATTEMPTS: u32 = 64;
/// After this time, a missing line counts as refused, or its thread as dead.
const HOLE_TIMEOUT: Duration = Duration::from_secs(2);

/// Result of a read.
#[derive(Debug, PartialEq, Eq)]
pub enum ReadOutcome {
    /// Number of bytes read, all of whole lines; 0 if nothing is new.
    Bytes(usize),
    /// Size of the next line in bytes: it does not fit.
    Needs(usize),
    /// The data after the position is gone.
    ///
    /// The position now points to the beginning of the remaining data, which starts with the complete state.
    Restarted,
}

/// The position after the last reserved line.
#[inline]
pub fn end(log: &Log) -> u64 {
    let file = log.file();
    file.stream_start() + file.tail()
}

/// Copies the written lines after `position`, and moves the position behind them.
pub fn read(log: &Log, position: &mut u64, buffer: &mut [u8]) -> ReadOutcome {
    let mut reader = READER.lock();
    let Some(mut file) = file_at(log, *position) else {
        *position = beginning(log).stream_start();
        reader.file = None;
        return ReadOutcome::Restarted;
    };
    loop {
        reader.file = Some(file);
        let lines = match *position - file.stream_start() {
            offset if offset < file.front() => read_front(file, offset, buffer),
            offset => read_lines(file, offset, buffer),
        };
        match lines {
            ReadAttempt::Lines(length) => {
                *position += length as u64;
                return ReadOutcome::Bytes(length);
            }
            ReadAttempt::Needs(length) => return ReadOutcome::Needs(length),
            ReadAttempt::EndOfFront if file.has_front() => *position = file.stream_start() + file.front(),
            ReadAttempt::EndOfFront => return ReadOutcome::Bytes(0),
            ReadAttempt::Hole(nuls) => {
                let since = match reader.hole {
                    Some((since, at)) if at == *position => since,
                    _ => {
                        reader.hole = Some((Instant::now(), *position));
                        return ReadOutcome::Bytes(0);
                    }
                };
                if nuls == 0 || since.elapsed() < HOLE_TIMEOUT && !(file.is_closed() && file.is_whole()) {
                    return ReadOutcome::Bytes(0);
                }
                *position += nuls as u64;
            }
            ReadAttempt::End => match replacement(log, file) {
                Some(next) => {
                    file = next;
                    *position = next.stream_start() + next.front();
                }
                None => return ReadOutcome::Bytes(0),
            },
        }
    }
}

enum ReadAttempt {
    Lines(usize),
    Needs(usize),
    EndOfFront,
    /// A reserved line is missing.
    ///
    /// The value is the number of NULs before the next line, or up to the end.
    Hole(usize),
    End,
}

/// Reads lines of the state at the front of a file; a NUL ends the state.
fn read_front(file: &TraceFile, offset: u64, buffer: &mut [u8]) -> ReadAttempt {
    if !file.has_front() {
        return ReadAttempt::EndOfFront;
    }
    let most = buffer.len().min((file.front() - offset) as usize);
    let read = file.read_at(&mut buffer[..most], offset);
    let text = &buffer[..read];
    let text = &text[..memchr::memchr(0, text).unwrap_or(read)];
    match memchr::memrchr(b'\n', text) {
        Some(last) => ReadAttempt::Lines(last + 1),
        None if text.is_empty() => ReadAttempt::EndOfFront,
        None => ReadAttempt::Needs(2 * buffer.len().max(1)),
    }
}

fn read_lines(file: &'static TraceFile, offset: u64, buffer: &mut [u8]) -> ReadAttempt {
    for _ in 0..UNFINISHED_LINE_ATTEMPTS {
        // SAFETY: the caller holds the lock of the reader, without which no file is released that the reader is in.
        let Some(lines) = (unsafe { file.written_lines(offset, buffer.len()) }) else {
            return read_unmapped(file, offset, buffer);
        };
        if !lines.is_empty() {
            let fits = lines.len().min(buffer.len());
            let Some(last) = memchr::memrchr(b'\n', &lines[..fits]) else { return ReadAttempt::Needs(lines.len()) };
            buffer[..=last].copy_from_slice(&lines[..=last]);
            return ReadAttempt::Lines(last + 1);
        }
        if offset >= file.tail().min(file.taken()) {
            return ReadAttempt::End;
        }
        std::thread::yield_now();
    }
    let mut piece = [0; 4096];
    let read = file.read_at(&mut piece, offset);
    let read = read.min(file.tail().saturating_sub(offset) as usize);
    ReadAttempt::Hole(piece[..read].iter().position(|byte| *byte != 0).unwrap_or(read))
}

/// Reads lines of a file on a file system without shared mappings.
fn read_unmapped(file: &TraceFile, offset: u64, buffer: &mut [u8]) -> ReadAttempt {
    let most = (file.tail().saturating_sub(offset) as usize).min(buffer.len());
    if most == 0 {
        return ReadAttempt::End;
    }
    let read = file.read_at(&mut buffer[..most], offset);
    let text = &buffer[..read];
    let text = &text[..memchr::memchr(0, text).unwrap_or(read)];
    match memchr::memrchr(b'\n', text) {
        Some(last) => ReadAttempt::Lines(last + 1),
        None if text.len() == buffer.len() => ReadAttempt::Needs(2 * buffer.len()),
        None => ReadAttempt::Hole(buffer[..read].iter().position(|byte| *byte != 0).unwrap_or(read)),
    }
}

/// Returns the file that contains a position; `None` if it is gone.
fn file_at(log: &Log, position: u64) -> Option<&'static TraceFile> {
    let mut file = log.file();
    while position < file.stream_start() {
        file = file.previous()?;
    }
    (!file.is_released()).then_some(file)
}

/// Returns the file with which a new reader starts.
///
/// The state at the front of the current file may not be complete yet.
fn beginning(log: &Log) -> &'static TraceFile {
    let file = log.file();
    match file.previous() {
        Some(previous) if !file.has_front() && !previous.is_released() => previous,
        _ => file,
    }
}

/// The file that replaced `file`.
fn replacement(log: &Log, file: &'static TraceFile) -> Option<&'static TraceFile> {
    let mut later = log.file();
    while !ptr::eq(later, file) {
        let before = later.previous()?;
        if ptr::eq(before, file) {
            return Some(later);
        }
        later = before;
    }
    None
}

/// Calls `release` for a replaced file unless the reader is in it and the log can wait for the reader.
pub fn release_unless_read(log: &Log, file: &TraceFile, release: impl FnOnce()) -> bool {
    let reader = READER.lock();
    let is_read = reader.file.is_some_and(|read| ptr::eq(read, file));
    if is_read && !log.is_full() && !log.file().is_large() {
        return false;
    }
    release();
    true
}

/// Called in a forked child, which has no reader yet.
pub fn reset_in_child() {
    locks::reset_in_child(&READER, Reader { file: None, hole: None });
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::log::trace_path::{IN_MEMORY, Naming};

    /// The tests share the process's single reader.
    static ONE_READER: Mutex<()> = Mutex::new(());

    fn next_file(front: &[u8]) -> TraceFile {
        let file = TraceFile::create(Path::new(IN_MEMORY), Naming::Exact, 64 << 20, 4096).unwrap();
        file.write_front(front).unwrap();
        file
    }

    fn read_all(log: &Log, position: &mut u64, text: &mut Vec<u8>) -> bool {
        let mut buffer = [0; 4096];
        loop {
            match read(log, position, &mut buffer) {
                ReadOutcome::Bytes(0) => return true,
                ReadOutcome::Bytes(bytes) => text.extend_from_slice(&buffer[..bytes]),
                ReadOutcome::Needs(bytes) => panic!("no line has {bytes} bytes"),
                ReadOutcome::Restarted => return false,
            }
        }
    }

    #[test]
    fn a_reader_gets_every_line_once_while_threads_append_and_the_log_switches() {
        let _one = ONE_READER.lock();
        // GIVEN four threads that append numbered lines, and a log that continues in other files at the same time
        let log = Log::create(Path::new(IN_MEMORY), Naming::Exact, 64 << 20, b"{}\n").unwrap();
        let (mut position, mut text, stop) = (0, Vec::new(), AtomicBool::new(false));
        let mut left: Vec<&'static TraceFile> = Vec::new();
        let appended: Vec<u64> = std::thread::scope(|scope| {
            let append = |thread: u64| {
                let (log, stop) = (&log, &stop);
                move || {
                    let mut number = 0;
                    while !stop.load(Ordering::Relaxed) {
                        log.append(
                            format!("[{thread},{number},\"{}\"]\n", "x".repeat(number as usize % 40)).as_bytes(),
                        );
                        number += 1;
                        if number % 64 == 0 {
                            std::thread::sleep(Duration::from_micros(100));
                        }
                    }
                    number
                }
            };
            let threads: Vec<_> = (0..4).map(|thread| scope.spawn(append(thread))).collect();
            for round in 0..60 {
                // WHEN it is read now and then
                if round % 3 == 0 {
                    let next = next_file(b"{}\n");
                    left.push(log.switch_to(next));
                    log.file().front_is_complete();
                }
                std::thread::sleep(Duration::from_millis(1));
                assert!(read_all(&log, &mut position, &mut text));
                left.retain(|file| {
                    // SAFETY: closed and whole, and the reader is not in it.
                    !(file.is_whole() && release_unless_read(&log, file, || unsafe { file.release() }))
                });
            }
            stop.store(true, Ordering::Relaxed);
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(read_all(&log, &mut position, &mut text));
        // THEN it contains each written line once, in the order of its thread; a line that a closing file refused is written
        // to the next file
        let mut next = [0; 4];
        for line in String::from_utf8(text).unwrap().lines().filter(|line| line.starts_with('[')) {
            let (thread, number, filler): (usize, u64, String) = serde_json::from_str(line).unwrap();
            assert_eq!((number, filler.len() as u64), (next[thread], number % 40));
            next[thread] += 1;
        }
        assert_eq!(next.to_vec(), appended);
        assert_eq!(position, end(&log));
    }

    #[test]
    fn a_reader_that_comes_late_begins_with_the_whole_state() {
        let _one = ONE_READER.lock();
        // GIVEN a log that has switched to a file with the state at its front, and the first file is gone
        let path: PathBuf = std::env::temp_dir().join(format!("memlab-live-{}", std::process::id()));
        let log = Log::create(&path, Naming::AsAsked { run: None }, 64 << 20, b"{}\n").unwrap();
        log.append(b"[1]\n");
        let old = log.switch_to(next_file(b"{}\n{\"state\":1}\n"));
        log.append(b"[2]\n");
        let (mut position, mut text) = (0, Vec::new());
        // WHEN it is read before the state is complete THEN the reader gets the first file's lines and the new ones
        assert!(read_all(&log, &mut position, &mut text));
        assert_eq!(text, b"{}\n[1]\n[2]\n");
        // WHEN a new reader comes later THEN its read restarts, and begins with the state
        log.file().front_is_complete();
        assert!(old.is_whole());
        // SAFETY: closed and whole, and the reader has moved on.
        assert!(release_unless_read(&log, old, || unsafe { old.release() }));
        let (mut position, mut text) = (0, Vec::new());
        assert!(!read_all(&log, &mut position, &mut text));
        assert!(read_all(&log, &mut position, &mut text));
        assert_eq!(String::from_utf8(text).unwrap(), "{}\n{\"state\":1}\n[2]\n");
        std::fs::remove_file(&path).unwrap();
    }
}
