//! The location of traces: the pattern given to the program, and the file names that match it.

use std::ffi::OsString;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use memlab_trace::{open_file_no_follow, read_header};
use regex::Regex;
use rustix::fs::{Access, statvfs};

use memlab_base::error::bad_input;

/// Default name of a trace.
const DEFAULT: &str = "memlab-%n-%p.jsonl";

/// A checked pattern.
#[derive(Clone, Debug)]
pub struct Output {
    pattern: String,
    folder: PathBuf,
    names: Regex,
}

impl Output {
    /// Chooses `-o`, else `MEMLAB_OUTPUT`, else the default name in the working directory.
    ///
    /// # Errors
    ///
    /// If the folder cannot be written, or a file of that name must not be replaced. Traces are replaced only with `force`,
    /// other files never.
    pub fn choose(option: Option<&Path>, variable: Option<OsString>, force: bool) -> anyhow::Result<Self> {
        let (asked, who) = match (option, variable.filter(|value| !value.is_empty())) {
            (Some(option), _) => (option.to_owned(), "-o"),
            (None, Some(variable)) => (PathBuf::from(variable), "MEMLAB_OUTPUT"),
            (None, None) => (PathBuf::from(DEFAULT), "the working directory"),
        };
        let asked = asked.into_os_string().into_string().map_err(|name| {
            bad_input(format!("{who} {}: the name is not UTF-8: choose another", name.to_string_lossy()))
        })?;
        let asked = if asked.ends_with('/') || Path::new(&asked).is_dir() {
            format!("{}/{DEFAULT}", asked.trim_end_matches('/'))
        } else {
            asked
        };
        // A % in the working directory's own name is no placeholder.
        let pattern = if asked.starts_with('/') {
            asked
        } else {
            let directory =
                std::env::current_dir().ok().and_then(|directory| directory.into_os_string().into_string().ok());
            let Some(directory) = directory else {
                return Err(bad_input(format!(
                    "{who} {asked}: the working directory has no usable name: give an absolute path"
                )));
            };
            format!("{}/{asked}", directory.trim_end_matches('/').replace('%', "%%"))
        };
        let (folder, name) = pattern.rsplit_once('/').unwrap_or(("", &pattern));
        let is_literal = !has_placeholder(folder);
        check_placeholders(name, who)?;
        let (longest, names) = (longest_name(name), names(name)?);
        let output = Self { names, folder: literal(folder), pattern };
        output.make_folder(is_literal, who)?;
        output.check(who)?;
        output.check_length(longest, who)?;
        if !has_placeholder(&output.pattern) {
            // MEMLAB_OUTPUT applies to all runs, so the latest trace replaces the earlier one.
            output.check_file(who, force || option.is_none())?;
        }
        Ok(output)
    }

    /// The pattern for `MEMLAB_OUTPUT`, absolute.
    pub fn pattern(&self) -> &str {
        &self.pattern
    }

    /// The folder in which traces appear.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns true if a file name matches the pattern, or is a numbered variant (`NAME-1`) of one that does.
    pub fn matches(&self, name: &str) -> bool {
        let (stem, ending) = name.find('.').map_or((name, ""), |dot| name.split_at(dot));
        let unnumbered = stem.rsplit_once('-').filter(|(_, number)| number.bytes().all(|byte| byte.is_ascii_digit()));
        self.names.is_match(name) || unnumbered.is_some_and(|(stem, _)| self.names.is_match(&format!("{stem}{ending}")))
    }

    /// Checks the existing file under a name without placeholders.
    fn check_file(&self, who: &str, force: bool) -> anyhow::Result<()> {
        let path = PathBuf::from(self.pattern.replace("%%", "%"));
        let shown = path.display();
        let Ok(found) = std::fs::symlink_metadata(&path) else { return Ok(()) };
        let kind = found.file_type();
        let what = if kind.is_symlink() {
            "a symbolic link"
        } else if kind.is_fifo() {
            "a named pipe"
        } else if !kind.is_file() {
            "a device or a socket"
        } else if found.len() == 0 {
            return Ok(());
        } else if open_file_no_follow(&path).ok().as_ref().and_then(read_header).is_none() {
            "a file that is not a trace"
        } else if force {
            return Ok(());
        } else {
            return Err(bad_input(format!(
                "{who}: the trace {shown} already exists: choose another name, or add --force to replace it"
            )));
        };
        Err(bad_input(format!("{who}: {shown} is {what}, and memlab replaces only traces: choose another name")))
    }

    /// Creates the folder if only its last part is missing: `-o 'job/%r.jsonl'` names a job's folder before it exists.
    fn make_folder(&self, is_literal: bool, who: &str) -> anyhow::Result<()> {
        let is_last = self.folder.parent().is_some_and(Path::is_dir);
        if self.folder.exists() || !is_last {
            return Ok(());
        }
        let folder = self.folder.display();
        if !is_literal {
            return Err(bad_input(format!(
                "{who}: no folder {folder}; %p, %r, %n and %h are replaced in the name of the file only"
            )));
        }
        std::fs::create_dir(&self.folder)
            .or_else(|error| if self.folder.is_dir() { Ok(()) } else { Err(error) })
            .map_err(|error| bad_input(format!("{who}: the folder {folder} cannot be created: {error}")))
    }

    /// Refuses a name that is too long for the folder once its placeholders are filled in.
    fn check_length(&self, longest: usize, who: &str) -> anyhow::Result<()> {
        let most = statvfs(&self.folder).map_or(255, |found| found.f_namemax as usize);
        if longest <= most {
            return Ok(());
        }
        Err(bad_input(format!(
            "{who}: the name of the trace would have up to {longest} bytes, but names there have at most {most}: choose a shorter one"
        )))
    }

    fn check(&self, who: &str) -> anyhow::Result<()> {
        let folder = self.folder.display();
        match std::fs::metadata(&self.folder) {
            Ok(found) if !found.is_dir() => {
                return Err(bad_input(format!("{who}: {folder} is not a folder: choose another one")));
            }
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(bad_input(format!("{who}: no folder {folder}: create it with `mkdir -p {folder}`")));
            }
            Err(error) => return Err(bad_input(format!("{who}: {folder} cannot be used: {error}"))),
        }
        if let Err(error) = rustix::fs::access(&self.folder, Access::WRITE_OK | Access::EXEC_OK) {
            let error = std::io::Error::from(error);
            return Err(bad_input(format!(
                "{who}: traces cannot be written to {folder} ({error}): choose another folder with -o"
            )));
        }
        Ok(())
    }
}

fn has_placeholder(pattern: &str) -> bool {
    let mut characters = pattern.chars();
    while let Some(character) = characters.next() {
        if character == '%' && characters.next().is_some_and(|letter| "prhn".contains(letter)) {
            return true;
        }
    }
    false
}

/// Refuses an unknown placeholder in a file's name.
fn check_placeholders(name: &str, who: &str) -> anyhow::Result<()> {
    let mut parts = name.split('%').skip(1);
    while let Some(part) = parts.next() {
        match part.chars().next() {
            Some('p' | 'r' | 'h' | 'n') => {}
            // From `%%`, which leaves an empty part.
            None if parts.next().is_some() => {}
            other => {
                let unknown = other.map(String::from).unwrap_or_default();
                return Err(bad_input(format!(
                    "{who} {name}: %{unknown} is unknown: write %p (process), %r (rank), %n (program), %h (host), or %% for a %"
                )));
            }
        }
    }
    Ok(())
}

/// The folder's name; placeholders in it are not expanded.
fn literal(folder: &str) -> PathBuf {
    let folder = folder.replace("%%", "%");
    PathBuf::from(if folder.is_empty() { "/".to_owned() } else { folder })
}

/// A regex of the file names that the pattern can produce.
fn names(pattern: &str) -> anyhow::Result<Regex> {
    let mut expression = String::from("^");
    let mut characters = pattern.chars();
    while let Some(character) = characters.next() {
        let placeholder = if character == '%' { characters.next() } else { None };
        match (character, placeholder) {
            ('%', Some('p' | 'r')) => expression += "[0-9]+",
            ('%', Some('h' | 'n')) => expression += "[^/]+",
            ('%', Some('%')) => expression.push('%'),
            ('%', Some(other)) => expression += &regex::escape(&format!("%{other}")),
            (character, _) => expression += &regex::escape(character.encode_utf8(&mut [0; 4])),
        }
    }
    expression.push('$');
    Regex::new(&expression).map_err(|_| bad_input(format!("-o {pattern}: the name is too long")))
}

/// Longest name in bytes once its placeholders are filled in.
fn longest_name(pattern: &str) -> usize {
    let host = rustix::system::uname().nodename().count_bytes();
    let mut characters = pattern.chars();
    let mut bytes = 0;
    while let Some(character) = characters.next() {
        bytes += match (character, if character == '%' { characters.next() } else { None }) {
            ('%', Some('p' | 'r')) => "4194304".len(),
            ('%', Some('h')) => host,
            ('%', Some('n')) => 64,
            ('%', Some('%')) => 1,
            (character, other) => character.len_utf8() + other.map_or(0, char::len_utf8),
        };
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_their_pattern() {
        let names = names("run+%n-%p-%%.jsonl").unwrap();
        assert!(names.is_match("run+train-4242-%.jsonl"));
        assert!(!names.is_match("run+train-x-%.jsonl") && !names.is_match("xrun+train-1-%.jsonl"));
        assert!(super::names("%").unwrap().is_match("%"));
    }

    #[test]
    fn only_traces_are_replaced_and_only_when_asked() {
        // GIVEN a folder with a user's file, a trace, a link to it, an empty file, and a pipe
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("user.py"), "import torch\n").unwrap();
        std::fs::write(at("run.jsonl"), "{\"memlab\":1}\n").unwrap();
        std::fs::write(at("empty"), "").unwrap();
        std::os::unix::fs::symlink(at("run.jsonl"), at("link")).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
        let error = |name: &str, force| {
            Output::choose(Some(&at(name)), None, force).err().map(|error| error.to_string()).unwrap_or_default()
        };
        // THEN files that are not traces stay, even with --force
        for (name, what) in [("user.py", "not a trace"), ("link", "symbolic link"), ("pipe", "named pipe")] {
            for force in [false, true] {
                assert!(error(name, force).contains(what), "{name}: {}", error(name, force));
            }
        }
        assert!(Output::choose(Some(Path::new("/dev/null")), None, true).unwrap_err().to_string().contains("device"));
        // AND a trace is replaced with --force
        assert!(error("run.jsonl", false).contains("--force"));
        assert_eq!([error("run.jsonl", true), error("empty", false), error("run-%p.jsonl", false)], [""; 3]);
        // AND its name also matches the numbered traces beside it
        let output = Output::choose(Some(&at("run.jsonl")), None, true).unwrap();
        assert!(output.matches("run.jsonl") && output.matches("run-1.jsonl") && output.matches("run-12.jsonl"));
        assert!(!output.matches("run-x.jsonl") && !output.matches("other.jsonl"));
    }

    #[test]
    fn unknown_placeholders_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let choose = |name: &str| Output::choose(Some(&folder.path().join(name)), None, false);
        for name in ["a-%q.jsonl", "%p-%", "%%%x", "100%.jsonl"] {
            let error = choose(name).unwrap_err().to_string();
            assert!(error.contains(" is unknown: write %p"), "{name}: {error}");
        }
        for name in ["a-%p-%r-%n-%h.jsonl", "%%", "100%%.jsonl", "%%%p", "%%q"] {
            assert!(choose(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn names_that_are_too_long_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let choose = |name: String| Output::choose(Some(&folder.path().join(name)), None, false);
        // GIVEN names of the longest allowed length, and longer names, one of them only with the program's name
        assert!(choose("a".repeat(249) + ".jsonl").is_ok() && choose("a".repeat(200) + "%%-%p.jsonl").is_ok());
        for name in ["a".repeat(250) + ".jsonl", "a".repeat(200) + "%n.jsonl"] {
            // THEN the longer ones are refused before the program runs
            let error = choose(name).unwrap_err().to_string();
            assert!(error.contains("at most 255: choose a shorter one"), "{error}");
        }
    }

    #[test]
    fn the_folder_is_checked() {
        let missing = Output::choose(Some(Path::new("/no/such/folder/x.jsonl")), None, false).unwrap_err();
        assert!(missing.to_string().contains("mkdir -p /no/such/folder"), "{missing}");
        let file = Output::choose(Some(Path::new("/etc/hostname/x.jsonl")), None, false).unwrap_err();
        assert!(file.to_string().contains("hostname"), "{file}");
        let folder = tempfile::tempdir().unwrap();
        let output = Output::choose(Some(folder.path()), None, false).unwrap();
        assert!(output.pattern().ends_with("/memlab-%n-%p.jsonl") && output.folder() == folder.path());
        // A missing folder is created if its parent exists and its name has no placeholder.
        let choose = |name: &str| Output::choose(Some(&folder.path().join(name)), None, false);
        assert!(choose("job/%h-%r.jsonl").is_ok() && folder.path().join("job").is_dir());
        assert!(choose("job-%h/%r.jsonl").unwrap_err().to_string().contains("in the name of the file only"));
        let variable = folder.path().join("a-%p.jsonl").into_os_string();
        assert!(Output::choose(None, Some(variable), false).unwrap().matches("a-7.jsonl"));
    }
}
