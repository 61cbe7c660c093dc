//! Source files named in traces: their current text, and the lines that the trace recorded.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::sync::Arc;

use memlab_trace::Sources;
use rustix::fs::OFlags;

/// Larger files are not shown.
const MAX_FILE_BYTES: u64 = 4 << 20;
/// A recorded line of this length or more may be cut.
const CUT_LINE_BYTES: usize = 230;

/// A line of a source file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLine {
    /// Number, from 1.
    pub number: u32,
    /// Text.
    pub text: String,
    /// True if the line certainly had this text when it ran.
    pub is_sure: bool,
}

/// Known lines of a source file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Lines by number. For a missing file, only the recorded lines.
    pub lines: Arc<[SourceLine]>,
    /// Reason why the text may differ from the code that ran.
    pub warning: Option<String>,
}

/// Reads a source file, with recorded lines in place of lines edited since.
///
/// `began_unix_ns`: start of the run.
///
/// # Errors
///
/// The reason why nothing can be shown.
pub fn open(file: &str, recorded: &Sources, began_unix_ns: u64) -> Result<Source, String> {
    let recorded: BTreeMap<u32, &str> = recorded.of_file(file).map(|(line, text)| (line, &**text)).collect();
    let (now, modified_unix_ns) = match read(file) {
        Ok(found) => found,
        Err(reason) if recorded.is_empty() => return Err(reason),
        Err(reason) => {
            let line = |(number, text): (u32, &str)| SourceLine { number, text: text.to_owned(), is_sure: true };
            let warning = Some(format!("{reason}: these lines come from the trace"));
            return Ok(Source { lines: recorded.into_iter().map(line).collect(), warning });
        }
    };
    let was_changed = modified_unix_ns > began_unix_ns;
    let text_of = |number: u32| now.get((number as usize).checked_sub(1)?).map(String::as_str);
    let is_edited = |(number, text): &(&u32, &&str)| !is_same(text_of(**number).unwrap_or_default(), text);
    let edited = recorded.iter().filter(is_edited).count();
    let warning = match (edited, was_changed) {
        (1.., _) => Some(format!(
            "the file was edited since: {edited} of {} recorded lines differ; they are shown as they ran",
            recorded.len()
        )),
        (0, true) if recorded.is_empty() => {
            Some("the file was changed after the run began: these may not be the lines that ran".to_owned())
        }
        (0, true) => Some("the file was changed after the run began, but not in the recorded lines".to_owned()),
        (0, false) => None,
    };
    // If the file got shorter, the recorded lines beyond its end remain.
    let end = now.len() as u32 + 1;
    let numbers = (1..end).chain(recorded.range(end..).map(|(number, _)| *number));
    let line = |number: u32| {
        let (was, is) = (recorded.get(&number), text_of(number).unwrap_or_default());
        let text = was.filter(|was| !is_same(is, was)).map_or(is, |was| was);
        SourceLine { number, text: text.to_owned(), is_sure: was.is_some() || warning.is_none() }
    };
    Ok(Source { lines: numbers.map(line).collect(), warning })
}

/// True if a line still equals its recorded text.
fn is_same(now: &str, recorded: &str) -> bool {
    let now = now.trim_ascii_end();
    now == recorded || recorded.len() >= CUT_LINE_BYTES && now.starts_with(recorded.trim_end_matches('\u{fffd}'))
}

/// Reads the lines of a source file, and the time of its last change.
///
/// A trace may name any file. Only regular files of limited size are read, and none that would block the reader. Files
/// of /proc and /sys look regular but empty.
fn read(file: &str) -> Result<(Vec<String>, u64), String> {
    let open = File::options().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(file);
    let open = open.map_err(|_| "not on this machine, or no longer there".to_owned())?;
    let found = open.metadata().ok().filter(|found| found.is_file() && (1..=MAX_FILE_BYTES).contains(&found.len()));
    let Some(found) = found else { return Err("no source file".to_owned()) };
    let seconds = u64::try_from(found.mtime()).unwrap_or(0);
    let modified = seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(found.mtime_nsec()).unwrap_or(0));
    let mut bytes = Vec::new();
    open.take(MAX_FILE_BYTES).read_to_end(&mut bytes).map_err(|error| format!("cannot be read: {error}"))?;
    Ok((String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect(), modified))
}

#[cfg(test)]
mod tests {
    use memlab_trace::{Model, decode_line};

    use super::*;

    fn recorded(file: &str, lines: &[(u32, &str)]) -> Arc<Sources> {
        let mut model = Model::new();
        for (line, text) in lines {
            let record = format!(r#"{{"source":"{file}","line":{line},"text":"{text}"}}"#);
            model.apply(decode_line(record.as_bytes()).unwrap());
        }
        model.sources().clone()
    }

    #[test]
    fn only_source_files_are_read() {
        let nothing = Sources::default();
        for file in ["/proc/self/pagemap", "/proc/self/status", "/dev/zero", "/dev", "/nowhere/at/all.py", ""] {
            assert!(open(file, &nothing, 0).is_err(), "{file}");
        }
        let this = open(concat!(env!("CARGO_MANIFEST_DIR"), "/src/source_file.rs"), &nothing, u64::MAX).unwrap();
        assert!(this.lines.len() > 20 && this.warning.is_none());
    }

    #[test]
    fn an_edited_file_shows_what_ran() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("train.py").to_string_lossy().into_owned();
        let shown = |recorded: &Sources, began: u64| {
            let source = open(&file, recorded, began).unwrap();
            let lines: Vec<_> =
                source.lines.iter().map(|line| (line.number, line.text.clone(), line.is_sure)).collect();
            (lines, source.warning.unwrap_or_default())
        };
        let line = |number: u32, text: &str, is_sure: bool| (number, text.to_owned(), is_sure);
        // GIVEN a file with two recorded lines
        let ran = recorded(&file, &[(1, "a = 1"), (3, "c = 3")]);
        // WHEN it is unchanged THEN no warning is shown
        std::fs::write(&file, "a = 1\nb = 2\nc = 3  \n").unwrap();
        let same = vec![line(1, "a = 1", true), line(2, "b = 2", true), line(3, "c = 3  ", true)];
        assert_eq!(shown(&ran, u64::MAX), (same, String::new()));
        // WHEN it was changed after the start, on other or unknown lines THEN a warning is shown
        let (_, warning) = shown(&ran, 0);
        assert!(warning.contains("but not in the recorded lines"), "{warning}");
        let (_, warning) = shown(&Sources::default(), 0);
        assert!(warning.contains("may not be the lines that ran"), "{warning}");
        // WHEN a line was inserted THEN recorded lines keep their numbers, and the rest is uncertain
        std::fs::write(&file, "a = 1\nb = 2\nnew\nc = 3\n").unwrap();
        let (lines, warning) = shown(&ran, u64::MAX);
        let edited = [line(1, "a = 1", true), line(2, "b = 2", false), line(3, "c = 3", true), line(4, "c = 3", false)];
        assert_eq!(lines, edited);
        assert!(warning.contains("1 of 2 recorded lines"), "{warning}");
        // WHEN it is gone, or shorter THEN the recorded lines are left
        std::fs::write(&file, "a = 1\n").unwrap();
        assert_eq!(shown(&ran, u64::MAX).0, [line(1, "a = 1", true), line(3, "c = 3", true)]);
        std::fs::remove_file(&file).unwrap();
        let (lines, warning) = shown(&ran, u64::MAX);
        assert_eq!(lines, [line(1, "a = 1", true), line(3, "c = 3", true)]);
        assert!(warning.contains("not on this machine"), "{warning}");
    }
}
