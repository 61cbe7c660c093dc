//! Writes the last line of a trace whose process could not write it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use memlab_trace::encode::{self, LineBuffer};
use memlab_trace::open_file_no_follow;

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::launch::ExitOutcome;

const CHUNK: usize = 1 << 20;

/// Returns true if the trace contains the end of its process.
pub fn is_ended(path: &Path) -> io::Result<bool> {
    let file = open_file_no_follow(path)?;
    let end = written(&file)?;
    says_end(&file, end)
}

/// Records the end of a trace's process, `time` after its start, unless the trace has one.
///
/// The process must be dead: reserved and unwritten bytes are cut off the end of the file.
pub fn append_end(path: &Path, ended: ExitOutcome, time: u64) -> io::Result<bool> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = OpenOptions::new().read(true).write(true).custom_flags(flags.bits() as i32).open(path)?;
    let end = written(&file)?;
    if end == 0 || says_end(&file, end)? {
        return Ok(false);
    }
    let (code, signal) = match ended {
        ExitOutcome::Code(code) => (Some(code), None),
        ExitOutcome::Signal(signal) => (None, Some(signal)),
    };
    let mut buffer = LineBuffer::<128>::new();
    let line = encode::end(&mut buffer, time, code, signal);
    let mut last = [0];
    file.read_exact_at(&mut last, end - 1)?;
    let mut tail = Vec::with_capacity(line.len() + 1);
    if last != *b"\n" {
        tail.push(b'\n');
    }
    tail.extend_from_slice(line);
    if end + tail.len() as u64 > largest_file() {
        return Err(Errno::FBIG.into()); // Half a line would be worse than none.
    }
    file.write_all_at(&tail, end)?;
    file.set_len(end + tail.len() as u64)?;
    Ok(true)
}

/// Largest file that this process may write.
///
/// A write beyond it would raise SIGXFSZ.
fn largest_file() -> u64 {
    getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX)
}

/// Offset of the NULs at the end.
fn written(file: &File) -> io::Result<u64> {
    let mut end = file.metadata()?.len();
    let mut buffer = vec![0; CHUNK];
    while end > 0 {
        let length = end.min(CHUNK as u64) as usize;
        let start = end - length as u64;
        file.read_exact_at(&mut buffer[..length], start)?;
        if let Some(position) = buffer[..length].iter().rposition(|byte| *byte != 0) {
            return Ok(start + position as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

/// Returns true if one of the last lines is an end.
fn says_end(file: &File, end: u64) -> io::Result<bool> {
    let length = end.min(64 << 10) as usize;
    let mut buffer = vec![0; length];
    file.read_exact_at(&mut buffer, end - length as u64)?;
    Ok(buffer.split(|byte| *byte == b'\n' || *byte == 0).any(|line| line.starts_with(b"[\"end\",")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = r#"{"memlab":1,"pid":7,"start_unix_ns":1}"#;

    fn after(content: &[u8]) -> (bool, String) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.jsonl");
        std::fs::write(&path, content).unwrap();
        let appended = append_end(&path, ExitOutcome::Signal(9), 7).unwrap();
        (appended, String::from_utf8(std::fs::read(&path).unwrap()).unwrap())
    }

    #[test]
    fn a_killed_process_gets_its_end() {
        // GIVEN a trace that was extended ahead when its writer was killed
        let mut content = format!("{HEADER}\n[\"f\",2,1,0,512]\n").into_bytes();
        content.resize(3 << 20, 0);
        // WHEN the launcher ends it THEN the NULs are gone and the signal is recorded
        let (appended, text) = after(&content);
        assert!(appended && text.starts_with(HEADER) && text.ends_with("\n[\"end\",7,null,9]\n"), "{text}");
        assert_eq!(text.lines().count(), 3);
    }

    #[test]
    fn a_line_cut_short_stays_a_line() {
        let (_, text) = after(format!("{HEADER}\n[\"f\",2,1").as_bytes());
        assert_eq!(text.lines().count(), 3);
    }

    #[test]
    fn an_end_is_written_once() {
        let content = format!("{HEADER}\n[\"end\",5,0,null]\n");
        assert_eq!(after(content.as_bytes()), (false, content));
        assert_eq!(after(b""), (false, String::new()));
    }
}
