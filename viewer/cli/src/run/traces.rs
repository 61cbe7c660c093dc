//! Finds the traces that the started program and its children write.
//!
//! A trace names the `memlab run` that it belongs to. Programs inherit that name in the environment. If a program has lost
//! it, the ancestors of its live process show the membership.

use std::collections::{HashMap, HashSet};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use memlab_trace::record::Header;
use memlab_trace::{open_file_no_follow, read_header};

use super::created::CreatedNames;
use super::output::Output;
use memlab_base::clock::now_unix_ns;

/// A trace of this run.
#[derive(Clone, Debug)]
pub struct FoundTrace {
    /// The file.
    pub path: PathBuf,
    /// Its first line.
    pub header: Header,
}

/// Finds traces as they appear.
pub struct TraceFinder {
    output: Output,
    run: String,
    started_unix_ns: u64,
    program: Option<u32>,
    /// Known descendants of this process, including itself.
    family: HashSet<u32>,
    found: Vec<FoundTrace>,
    /// Files of other runs.
    strangers: HashMap<PathBuf, FileIdentity>,
    created: Option<CreatedNames>,
}

/// Inode and creation time of a file: inode numbers are reused.
type FileIdentity = (u64, SystemTime);

impl TraceFinder {
    /// Creates a finder for a program that starts from now on; `run` as in `MEMLAB_RUN`.
    pub fn new(output: &Output, run: &str) -> Self {
        Self {
            output: output.clone(),
            run: run.to_owned(),
            started_unix_ns: now_unix_ns(),
            program: None,
            family: HashSet::from([std::process::id()]),
            found: Vec::new(),
            strangers: HashMap::new(),
            created: CreatedNames::watch(output.folder()),
        }
    }

    /// Adds the started program.
    pub fn adopt(&mut self, pid: u32) {
        self.family.insert(pid);
        self.program = Some(pid);
    }

    /// Process id of the program itself.
    pub fn program(&self) -> Option<u32> {
        self.program
    }

    /// The traces found so far, in order of rank and start.
    pub fn found(&self) -> &[FoundTrace] {
        &self.found
    }

    /// The folder in which traces appear.
    pub fn folder(&self) -> &Path {
        self.output.folder()
    }

    /// Returns a trace that was created and is gone again, if any.
    pub fn lost(&mut self) -> Option<PathBuf> {
        let output = &self.output;
        let names = self.created.as_mut().map(|created| created.read(|name| output.matches(name)));
        let created = names.into_iter().flatten().map(|name| output.folder().join(name));
        let found = self.found.iter().map(|found| found.path.clone());
        found.chain(created).find(|path| !path.exists())
    }

    /// Takes the found traces that are gone again.
    pub fn take_deleted(&mut self) -> Vec<FoundTrace> {
        self.found.extract_if(.., |found| !found.path.exists()).collect()
    }

    /// Looks for new traces.
    ///
    /// Returns all traces found so far, in order of rank and start.
    pub fn scan(&mut self) -> &[FoundTrace] {
        let folder = self.output.folder().to_owned();
        self.scan_folder(&folder);
        // The library writes here if it cannot write to the folder.
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
            // Any file may have such a name. Never wait for a pipe or follow a link.
            let path = entry.path();
            let is_candidate = |found: &Metadata| {
                found.is_file()
                    && (!is_shared || found.uid() == rustix::process::geteuid().as_raw())
                    && !self.is_known(&path, found)
            };
            let Some(file) = entry.metadata().ok().filter(is_candidate) else { continue };
            let Some(header) = open_file_no_follow(&path).ok().as_ref().and_then(read_header) else { continue };
            self.sort_in(path, header, identity(&file));
        }
    }

    fn is_known(&self, path: &Path, file: &Metadata) -> bool {
        self.found.iter().any(|found| found.path == path)
            || self.strangers.get(path).is_some_and(|known| Some(*known) == identity(file))
    }

    fn sort_in(&mut self, path: PathBuf, header: Header, file: Option<FileIdentity>) {
        let is_ours = match &header.run {
            Some(run) => is_within(run, &self.run),
            // The process id may have been reused since.
            None if header.start_unix_ns < self.started_unix_ns => false,
            None => {
                let ancestors = ancestors(header.pid, header.parent_pid);
                let known = ancestors.iter().position(|pid| self.family.contains(pid));
                self.family.extend(known.into_iter().flat_map(|position| &ancestors[..position]));
                known.is_some()
            }
        };
        if is_ours {
            self.family.insert(header.pid);
            self.found.push(FoundTrace { path, header });
        } else if let Some(file) = file {
            self.strangers.insert(path, file);
        }
    }
}

/// `None` if the file system stores no creation time.
fn identity(file: &Metadata) -> Option<FileIdentity> {
    Some((file.ino(), file.created().ok()?))
}

/// Returns true if a run is `outer` or nested in it.
fn is_within(run: &str, outer: &str) -> bool {
    run.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns a process and its living ancestors.
fn ancestors(pid: u32, parent: u32) -> Vec<u32> {
    let mut ancestors = vec![pid, parent];
    // Deeper than any process tree. The bound also ends a loop, which cannot occur.
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

/// Returns true if no process has this id.
pub fn is_gone(pid: u32) -> bool {
    !Path::new(&format!("/proc/{pid}")).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, pid: u32, parent: u32, start: u64, run: &str) {
        let line =
            format!(r#"{{"memlab":1,"id":"{pid}","pid":{pid},"parent_pid":{parent},"start_unix_ns":{start}{run}}}"#);
        std::fs::write(path, line + "\n").unwrap();
    }

    #[test]
    fn only_the_traces_of_this_run_are_found() {
        // GIVEN a folder with the trace of another run
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        let of = |run: &str| format!(r#","run":"{run}""#);
        write(&file("t-1.jsonl"), u32::MAX, 1, 5, &of("a1"));
        let output = Output::choose(Some(&file("t-%p.jsonl")), None, false).unwrap();
        let mut finder = TraceFinder::new(&output, "b2");
        let now = now_unix_ns();
        finder.adopt(4_000_000_001);
        // WHEN traces of the run appear: from its program with a clock set back, from a process that is gone, and from a
        // nested run
        write(&file("t-2.jsonl"), 4_000_000_001, 4_000_000_000, 5, &of("b2"));
        write(&file("t-3.jsonl"), 4_000_000_002, 4_000_000_001, now + 1, &of("b2"));
        write(&file("t-7-1.jsonl"), 4_000_000_003, 4_000_000_000, now + 2, &of("b2/c3"));
        // AND a trace of the program after it lost the environment
        write(&file("t-5.jsonl"), 4_000_000_001, 4_000_000_000, now + 3, "");
        // AND traces of other runs, of an unrelated process without a run whose parent is gone, an old trace, and other
        // files
        write(&file("t-4.jsonl"), 4_000_000_004, 4_000_000_001, now, &of("b22"));
        write(&file("t-10.jsonl"), 4_000_000_005, 4_000_000_006, now, "");
        write(&file("t-11.jsonl"), 4_000_000_001, 4_000_000_000, 5, "");
        std::os::unix::fs::symlink(file("t-2.jsonl"), file("t-8.jsonl")).unwrap();
        let pipe = std::process::Command::new("mkfifo").arg(file("t-9.jsonl")).status().unwrap();
        assert!(pipe.success());
        write(&file("u-5.jsonl"), 4_000_000_001, 4_000_000_000, now, &of("b2"));
        std::fs::write(file("t-6.jsonl"), "no trace\n").unwrap();
        // THEN only the first ones belong to this run, and the pipe does not block the search
        let names = |finder: &mut TraceFinder| {
            let mut found: Vec<_> = finder.scan().iter().map(|found| found.path.clone()).collect();
            found.sort_unstable();
            found
        };
        let expected = ["t-2.jsonl", "t-3.jsonl", "t-5.jsonl", "t-7-1.jsonl"].map(file);
        assert_eq!(names(&mut finder), expected);
        // AND another search changes nothing, unless a file is replaced
        assert_eq!(names(&mut finder), expected);
        std::fs::remove_file(file("t-4.jsonl")).unwrap();
        write(&file("t-4.jsonl"), 4_000_000_004, 4_000_000_001, now, &of("b2"));
        assert_eq!(names(&mut finder).len(), 5);
    }
}
