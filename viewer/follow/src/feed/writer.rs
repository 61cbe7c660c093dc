//! Checks whether the process that writes a trace still lives.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use memlab_trace::record::Header;

use crate::snapshot::ProcessState;

/// Interval between checks of the writer.
const WRITER_CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// A trace that grew this recently has a writer, even if the process list has none (it may be in a container).
const GROWTH_GRACE: Duration = Duration::from_secs(2);
/// A trace from another machine without writes for this long has no writer.
const ABANDONED_AFTER: Duration = Duration::from_secs(10);

/// Time of the last growth and of the last check.
#[derive(Default)]
pub struct WriterState {
    grew: Option<Instant>,
    checked: Option<Instant>,
}

impl WriterState {
    /// Notes that the trace grew.
    pub fn on_growth(&mut self) {
        self.grew = Some(Instant::now());
    }

    /// Returns true if a check is due.
    pub fn is_check_due(&self) -> bool {
        self.checked.is_none_or(|checked| checked.elapsed() >= WRITER_CHECK_INTERVAL)
    }

    /// Returns the state of the writer: running, stopped, or gone without an end in the trace.
    pub fn check(&mut self, header: Option<&Header>, trace: &Path, is_opening: bool) -> ProcessState {
        self.checked = Some(Instant::now());
        let Some(header) = header else { return ProcessState::Recording };
        // Bytes present when the file was opened do not show growth.
        let is_growing = !is_opening && self.grew.is_some_and(|grew| grew.elapsed() < GROWTH_GRACE);
        let is_dead = match writer(header) {
            Writer::Runs => return ProcessState::Recording,
            Writer::Stopped => return ProcessState::Stopped,
            Writer::Dead => !is_growing,
            Writer::Elsewhere => {
                let written = fs::metadata(trace).and_then(|metadata| metadata.modified()).ok();
                // The other machine's clock may be ahead.
                let age = written.map(|written| written.elapsed().unwrap_or_default());
                !is_growing && age.is_none_or(|age| age > ABANDONED_AFTER)
            }
        };
        if is_dead { ProcessState::Killed } else { ProcessState::Recording }
    }
}

/// State of the writing process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writer {
    /// The process runs or sleeps.
    Runs,
    /// The process is stopped.
    Stopped,
    /// The process is gone.
    Dead,
    /// The process belongs to another machine.
    Elsewhere,
}

/// Looks for the process in a header.
fn writer(header: &Header) -> Writer {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if !header.host.is_empty() && !host.trim_end().is_empty() && header.host != host.trim_end() {
        return Writer::Elsewhere;
    }
    let Ok(stat) = fs::read_to_string(format!("/proc/{}/stat", header.pid)) else { return Writer::Dead };
    let Some((state, start_ticks)) = parse_stat(&stat) else { return Writer::Dead };
    if is_younger(start_ticks, header.start_unix_ns) {
        return Writer::Dead;
    }
    match state {
        'Z' | 'X' | 'x' => Writer::Dead,
        'T' | 't' => Writer::Stopped,
        _ => Writer::Runs,
    }
}

/// Parses state and start, in clock ticks since boot, from `/proc/<pid>/stat`.
///
/// The process name in it can contain any character.
fn parse_stat(stat: &str) -> Option<(char, u64)> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    // Field 3 is the state, field 22 the start.
    Some((state, fields.nth(18)?.parse().ok()?))
}

/// Returns true if a process that started at `start_ticks` is too young for a trace begun at `unix_ns`: its pid was reused.
fn is_younger(start_ticks: u64, unix_ns: u64) -> bool {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let boot =
        stat.lines().find_map(|line| line.strip_prefix("btime ")).and_then(|text| text.trim().parse::<u64>().ok());
    // USER_HZ is 100 on every Linux.
    let started = boot.map(|boot| boot.saturating_add(start_ticks / 100));
    // The two clocks may disagree a little.
    started.is_some_and(|started| started > unix_ns / 1_000_000_000 + 5)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(pid: u32) -> Header {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        Header { pid, start_unix_ns: now.as_nanos() as u64, ..Header::default() }
    }

    #[test]
    fn processes_are_distinguished() {
        // GIVEN this process THEN it runs
        assert_eq!(writer(&header(std::process::id())), Writer::Runs);
        // GIVEN a pid without a process THEN it is dead
        assert_eq!(writer(&header(u32::MAX)), Writer::Dead);
        // GIVEN a trace older than the process with its pid THEN the writer is dead
        let old = Header { start_unix_ns: 1, ..header(std::process::id()) };
        assert_eq!(writer(&old), Writer::Dead);
        // GIVEN a trace of another machine THEN its writer is unknown
        assert_eq!(writer(&Header { host: "no such host".into(), ..header(1) }), Writer::Elsewhere);
    }

    #[test]
    fn a_trace_of_another_machine_is_written_while_it_changes() {
        // GIVEN traces of another machine, one written yesterday, one tomorrow by a clock that is ahead
        let header = Header { host: "no such host".into(), ..header(1) };
        let trace = tempfile::NamedTempFile::new().unwrap();
        let now = std::time::SystemTime::now();
        let day = Duration::from_secs(86_400);
        for (written, state) in [(now - day, ProcessState::Killed), (now + day, ProcessState::Recording)] {
            trace.as_file().set_modified(written).unwrap();
            // THEN only the writer of the first is gone
            assert_eq!(WriterState::default().check(Some(&header), trace.path(), true), state);
        }
        // AND the writer of a deleted trace is gone too
        let gone = trace.into_temp_path();
        let path = gone.to_path_buf();
        gone.close().unwrap();
        assert_eq!(WriterState::default().check(Some(&header), &path, true), ProcessState::Killed);
    }

    #[test]
    fn names_with_brackets_are_passed_over() {
        let stat = "42 (a ) b) S 1 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 1 2";
        assert_eq!(parse_stat(stat), Some(('S', 98765)));
        assert_eq!(parse_stat("garbage"), None);
    }
}
