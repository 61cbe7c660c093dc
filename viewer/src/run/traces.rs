//! Which traces the started program and its children write.
//!
//! Files of the right name that are newer than the start are candidates. While their writers live, their ancestors
//! say whether they are ours; a writer that was gone before it was looked at counts as ours unless another run can be
//! shown to be its parent.

use std::collections::{HashMap, HashSet};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use memlab_trace::record::Header;
use memlab_trace::{open_file_no_follow, read_header};

use rustix::fs::statvfs;

use super::output::Output;
use crate::clock::now_unix_ns;

/// A trace of ours.
#[derive(Clone, Debug)]
pub struct Found {
    /// The file.
    pub path: PathBuf,
    /// Its first line.
    pub header: Header,
}

/// Finds traces as they appear.
pub struct TraceFinder {
    output: Output,
    started_unix_ns: u64,
    program: Option<u32>,
    /// Processes known to descend from this one, which is among them.
    family: HashSet<u32>,
    found: Vec<Found>,
    /// Files of other runs, by the identity of their trace.
    strangers: HashMap<PathBuf, String>,
}

impl TraceFinder {
    /// For a program started from now on.
    pub fn new(output: &Output) -> Self {
        Self {
            output: output.clone(),
            started_unix_ns: now_unix_ns(),
            program: None,
            family: HashSet::from([std::process::id()]),
            found: Vec::new(),
            strangers: HashMap::new(),
        }
    }

    /// The program was started.
    pub fn adopt(&mut self, pid: u32) {
        self.family.insert(pid);
        self.program = Some(pid);
    }

    /// The process number of the program itself.
    pub fn program(&self) -> Option<u32> {
        self.program
    }

    /// The traces found so far, in order of rank and start.
    pub fn found(&self) -> &[Found] {
        &self.found
    }

    /// Whether there is no room left for a trace where it was to be written.
    pub fn is_disk_full(&self) -> bool {
        statvfs(self.output.folder()).is_ok_and(|found| found.f_bavail.saturating_mul(found.f_frsize) < 1 << 16)
    }

    /// Looks again; all traces found so far, in order of rank and start.
    pub fn scan(&mut self) -> &[Found] {
        let folder = self.output.folder().to_owned();
        self.scan_folder(&folder);
        // Where the library writes what it cannot write there.
        let instead = std::env::temp_dir();
        if instead != folder {
            self.scan_folder(&instead);
        }
        self.found.sort_by_key(|found| (found.header.rank, found.header.start_unix_ns, found.header.pid));
        &self.found
    }

    fn scan_folder(&mut self, folder: &Path) {
        let is_shared = std::fs::metadata(folder).is_ok_and(|folder| folder.mode() & 0o1002 == 0o1002);
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            if !name.to_str().is_some_and(|name| self.output.matches(name)) {
                continue;
            }
            // Anything may have such a name: a pipe is not waited for, and a link is not followed.
            let path = entry.path();
            let is_candidate = |found: &Metadata| {
                found.is_file()
                    && (!is_shared || found.uid() == rustix::process::geteuid().as_raw())
                    && self.is_new(&path, found)
            };
            if !entry.metadata().is_ok_and(|found| is_candidate(&found)) {
                continue;
            }
            let Some(header) = open_file_no_follow(&path).ok().as_ref().and_then(read_header) else { continue };
            self.sort_in(path, header);
        }
    }

    fn is_new(&self, path: &Path, found: &Metadata) -> bool {
        let known = self.found.iter().any(|found| found.path == path);
        let written = found.modified().ok();
        let written = written.and_then(|written| written.duration_since(std::time::UNIX_EPOCH).ok());
        // A mapping's writes reach the file's time late, but not before its making; some file systems count seconds.
        let recent = written.is_some_and(|written| written.as_secs() + 2 > self.started_unix_ns / 1_000_000_000);
        !known && recent
    }

    fn sort_in(&mut self, path: PathBuf, header: Header) {
        if header.start_unix_ns < self.started_unix_ns || self.strangers.get(&path) == Some(&header.id) {
            return;
        }
        let ancestors = ancestors(header.pid, header.parent_pid);
        let ours = match ancestors.iter().position(|pid| self.family.contains(pid)) {
            Some(position) => {
                self.family.extend(&ancestors[..position]);
                true
            }
            // The walk broke off at a process that is gone.
            None => !ancestors.contains(&1),
        };
        if ours {
            self.family.insert(header.pid);
            self.found.push(Found { path, header });
        } else {
            self.strangers.insert(path, header.id);
        }
    }
}

/// A process, its parent, and so on, as far as they still live.
fn ancestors(pid: u32, parent: u32) -> Vec<u32> {
    let mut ancestors = vec![pid, parent];
    // Deeper than any tree of processes; a loop cannot be, but is not waited for.
    while ancestors.len() < 128 {
        let last = ancestors[ancestors.len() - 1];
        match parent_of(last) {
            Some(next) if next > 0 => ancestors.push(next),
            _ => break,
        }
    }
    ancestors
}

fn parent_of(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Whether no process has this number.
pub fn is_gone(pid: u32) -> bool {
    !Path::new(&format!("/proc/{pid}")).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, pid: u32, parent: u32, start: u64) {
        let line = format!(r#"{{"memlab":1,"id":"{pid}","pid":{pid},"parent_pid":{parent},"start_unix_ns":{start}}}"#);
        std::fs::write(path, line + "\n").unwrap();
    }

    #[test]
    fn only_the_traces_of_this_run_are_found() {
        // GIVEN a folder with an old trace
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        write(&file("t-1.jsonl"), u32::MAX, 1, 5);
        let output = Output::choose(Some(&file("t-%p.jsonl")), None, false).unwrap();
        let mut finder = TraceFinder::new(&output);
        let now = now_unix_ns();
        finder.adopt(4_000_000_001);
        // WHEN traces of the program, of a child of it that is gone, of a stranger that lives, and other files appear
        write(&file("t-2.jsonl"), 4_000_000_001, 4_000_000_000, now);
        write(&file("t-3.jsonl"), 4_000_000_002, 4_000_000_001, now + 1);
        write(&file("t-4.jsonl"), 1, 0, now);
        write(&file("t-7-1.jsonl"), 4_000_000_001, 4_000_000_000, now + 2);
        std::os::unix::fs::symlink(file("t-2.jsonl"), file("t-8.jsonl")).unwrap();
        let pipe = std::process::Command::new("mkfifo").arg(file("t-9.jsonl")).status().unwrap();
        assert!(pipe.success());
        write(&file("u-5.jsonl"), 4_000_000_001, 4_000_000_000, now);
        std::fs::write(file("t-6.jsonl"), "no trace\n").unwrap();
        // THEN only the first two are this run's, and one that had to go beside another; a pipe is not waited for
        let found: Vec<u32> = finder.scan().iter().map(|found| found.header.pid).collect();
        assert_eq!(found, [4_000_000_001, 4_000_000_002, 4_000_000_001]);
        // AND looking again changes nothing
        assert_eq!(finder.scan().len(), 3);
    }
}
