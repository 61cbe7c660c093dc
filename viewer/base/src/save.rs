//! Writes files whole or not at all.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::error::bad_input;
use crate::output;

/// Destination of output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Standard output.
    Output,
    /// A file.
    File(PathBuf),
}

impl Destination {
    /// Interprets `-` as standard output.
    pub fn of(path: &Path) -> Self {
        if path.as_os_str() == "-" { Self::Output } else { Self::File(path.to_owned()) }
    }

    /// Refuses to overwrite the file being read, and to write bytes to a terminal. Call before the work.
    ///
    /// # Errors
    ///
    /// If writing there is not allowed.
    pub fn check(&self, read: &Path, is_text: bool) -> anyhow::Result<()> {
        let path = match self {
            Self::Output if !is_text && output::stdout_is_terminal() => {
                return Err(bad_input("this format is binary: name a file with -o, or redirect the output"));
            }
            Self::Output => return Ok(()),
            Self::File(path) => path,
        };
        let Ok(found) = fs::metadata(path) else { return Ok(()) };
        if found.is_dir() {
            return Err(bad_input(format!("{}: is a folder: name a file in it", path.display())));
        }
        let mut beside = read.as_os_str().to_owned();
        beside.push(".next");
        let is_same = |other: &Path| {
            fs::metadata(other).is_ok_and(|other| (other.dev(), other.ino()) == (found.dev(), found.ino()))
        };
        if is_same(read) || is_same(Path::new(&beside)) {
            return Err(bad_input(format!("{}: is the trace itself: name another file", path.display())));
        }
        if is_trace(path) {
            return Err(bad_input(format!("{}: is a trace: name another file", path.display())));
        }
        Ok(())
    }

    /// Refuses to overwrite a file with a page unless memlab wrote it, as `memlab run` replaces only traces.
    ///
    /// # Errors
    ///
    /// If writing there is not allowed.
    pub fn check_page(&self, read: &Path) -> anyhow::Result<()> {
        self.check(read, true)?;
        match self {
            Self::File(path) if !may_be_page(path) => Err(bad_input(format!(
                "{}: is not a page written by memlab, so it is not replaced: name another file, or remove it",
                path.display()
            ))),
            _ => Ok(()),
        }
    }

    /// Writes the content. On an error, an existing file stays unchanged.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn write(&self, content: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> anyhow::Result<()> {
        match self {
            #[expect(clippy::disallowed_methods, reason = "exports can be binary; those of text clean theirs")]
            Self::Output => {
                let mut out = BufWriter::new(io::stdout().lock());
                content(&mut out)?;
                Ok(out.flush()?)
            }
            Self::File(path) => save(path, content).with_context(|| format!("{}: cannot be written", path.display())),
        }
    }
}

/// True for a missing or empty file, a file that is written in place, and a page with memlab's title.
fn may_be_page(path: &Path) -> bool {
    let Ok(found) = fs::metadata(path) else { return true };
    if !found.is_file() || found.len() == 0 {
        return true;
    }
    let mut beginning = [0; 4096];
    let length = File::open(path).and_then(|file| file.read_at(&mut beginning, 0)).unwrap_or(0);
    let beginning = String::from_utf8_lossy(&beginning[..length]);
    beginning
        .split_once("<title>")
        .and_then(|(_, rest)| rest.split_once("</title>"))
        .is_some_and(|(title, _)| title.contains("memlab"))
}

/// True if a file has a trace's name.
fn is_trace(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    [".jsonl", ".jsonl.zst", ".jsonl.next"].iter().any(|end| name.ends_with(end))
}

fn save(path: &Path, content: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    // Writes the target of a link, not the link.
    let path = &fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let found = fs::metadata(path).ok();
    if found.as_ref().is_some_and(|found| !found.is_file()) {
        // A pipe or /dev/null is written in place, not replaced by a file.
        let mut out = BufWriter::new(File::options().write(true).open(path)?);
        content(&mut out)?;
        return out.flush();
    }
    let mut name = OsString::from(".");
    name.push(path.file_name().ok_or(io::ErrorKind::InvalidInput)?);
    name.push(format!(".{}", std::process::id()));
    let temporary = TemporaryFile(path.with_file_name(name));
    let mut out = BufWriter::new(File::create(&temporary.0)?);
    content(&mut out)?;
    let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
    if let Some(found) = found {
        file.set_permissions(found.permissions())?;
    }
    file.sync_data()?;
    fs::rename(&temporary.0, path)
}

/// A file that is deleted unless it is renamed.
struct TemporaryFile(PathBuf);

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_there_whole_or_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.json");
        fs::write(&path, "old").unwrap();
        let destination = Destination::of(&path);
        // WHEN writing fails halfway
        let failed = destination.write(|out| {
            out.write_all(b"new")?;
            Err(io::ErrorKind::StorageFull.into())
        });
        // THEN the old content remains, and no other file
        assert!(format!("{:#}", failed.unwrap_err()).contains("out.json: cannot be written: "));
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        // AND when writing succeeds, the new content replaces it
        destination.write(|out| out.write_all(b"new")).unwrap();
        assert_eq!((fs::read_to_string(&path).unwrap(), fs::read_dir(&folder).unwrap().count()), ("new".to_owned(), 1));
    }

    #[test]
    fn links_and_devices_stay_what_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let (link, path) = (folder.path().join("link"), folder.path().join("file"));
        fs::write(&path, "old").unwrap();
        std::os::unix::fs::symlink("file", &link).unwrap();
        Destination::of(&link).write(|out| out.write_all(b"new")).unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        let null = folder.path().join("null");
        std::os::unix::fs::symlink("/dev/null", &null).unwrap();
        Destination::of(&null).write(|out| out.write_all(b"new")).unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }

    #[test]
    fn the_trace_being_read_is_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("run.jsonl"), "").unwrap();
        fs::write(path("run.jsonl.next"), "").unwrap();
        fs::hard_link(path("run.jsonl"), path("other")).unwrap();
        let check = |name: &str| Destination::of(&path(name)).check(&path("run.jsonl"), true);
        fs::write(path("b.jsonl"), "").unwrap();
        assert!(check("b.jsonl").unwrap_err().to_string().ends_with("is a trace: name another file"));
        for name in ["run.jsonl", "other", "run.jsonl.next"] {
            assert!(check(name).unwrap_err().to_string().ends_with("is the trace itself: name another file"));
        }
        assert!(check("").unwrap_err().to_string().ends_with("is a folder: name a file in it"));
        check("new").unwrap();
    }
}
