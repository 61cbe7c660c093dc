//! Source text of allocating lines, kept in the trace: the file may have changed when the trace is read.
//!
//! A hook that meets a location for the first time only queues it. The control thread reads the file; the thread that ends
//! the process reads the rest. Lines of libraries are not kept: their files are rarely edited.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};

use memlab_trace::encode::{self, LineBuffer};
use parking_lot::Mutex;

use interpose_base::config::config;
use interpose_base::file_names::is_library;
use interpose_base::log::Log;
use interpose_base::source_file;

/// Maximum bytes kept of one line: enough to recognise it.
const MAX_LINE_BYTES: usize = 240;
/// Maximum bytes of text kept of all lines together.
const MAX_TOTAL_BYTES: u64 = 1 << 20;
/// Maximum number of remembered locations.
///
/// It bounds memory for a program that generates code indefinitely.
const MAX_LOCATIONS: usize = 1 << 14;

#[derive(Default)]
pub struct Sources {
    places: Mutex<SourceLocations>,
    written_bytes: AtomicU64,
}

#[derive(Default)]
struct SourceLocations {
    known: HashMap<String, HashSet<u32>>,
    count: usize,
    /// Locations that are not read yet.
    waiting: Vec<(String, u32)>,
}

impl Sources {
    /// Queues a location on its first use.
    ///
    /// Called by hooks: accesses no file.
    pub fn met(&self, file: &str, line: Option<u32>) {
        let (true, Some(line)) = (config().keep_source && is_kept(file), line) else { return };
        let mut places = self.places.lock();
        if places.count >= MAX_LOCATIONS {
            return;
        }
        // A line has a frame for each of its call instructions.
        let is_new = match places.known.get_mut(file) {
            Some(lines) => lines.insert(line),
            None => places.known.insert(file.to_owned(), HashSet::from([line])).is_none(),
        };
        if is_new {
            places.count += 1;
            places.waiting.push((file.to_owned(), line));
        }
    }

    /// Writes the text of the lines queued since the last call.
    pub fn write(&self, log: &Log) {
        let waiting = std::mem::take(&mut self.places.lock().waiting);
        let mut by_file: HashMap<String, Vec<u32>> = HashMap::new();
        for (file, line) in waiting {
            by_file.entry(file).or_default().push(line);
        }
        for (file, lines) in by_file {
            let Ok(source) = source_file::read(&file) else { continue };
            let source: Vec<&[u8]> = source.split(|byte| *byte == b'\n').collect();
            for line in lines {
                let text = (line as usize).checked_sub(1).and_then(|index| source.get(index));
                let text = cut(text.map_or(&[], |text| text.trim_ascii_end()));
                if text.is_empty() {
                    continue;
                }
                if self.written_bytes.fetch_add(text.len() as u64, Ordering::Relaxed) > MAX_TOTAL_BYTES {
                    return;
                }
                log.append(encode::source(&mut LineBuffer::<4096>::new(), &file, line, text));
            }
        }
    }
}

/// Returns the kept part of a line, cut between characters.
fn cut(text: &[u8]) -> &[u8] {
    let begins_character = |end: &usize| text.get(*end).is_none_or(|byte| byte & 0xc0 != 0x80);
    let end = (0..=text.len().min(MAX_LINE_BYTES)).rev().find(begins_character).unwrap_or(0);
    &text[..end]
}

/// Returns true if the lines of a file are kept: not for libraries, and not for code without a file.
fn is_kept(file: &str) -> bool {
    file.starts_with('/') && !is_library(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_cut_between_characters() {
        assert_eq!(cut(b"x = 1"), b"x = 1");
        assert_eq!(cut("x".repeat(300).as_bytes()).len(), MAX_LINE_BYTES);
        let long = format!("x{}", "ä".repeat(300));
        assert_eq!(std::str::from_utf8(cut(long.as_bytes())).map(str::len), Ok(MAX_LINE_BYTES - 1));
    }

    #[test]
    fn lines_of_libraries_and_of_no_file_are_not_kept() {
        for file in ["/home/ada/gpt/train.py", "/python3/x.py", "/tmp/a b.py"] {
            assert!(is_kept(file), "{file}");
        }
        for file in [
            "<string>",
            "train.py",
            "/venv/lib/python3.11/site-packages/torch/nn/linear.py",
            "/usr/lib/python3/dist-packages/numpy/core.py",
            "/usr/lib/python3.11/threading.py",
        ] {
            assert!(!is_kept(file), "{file}");
        }
    }
}
