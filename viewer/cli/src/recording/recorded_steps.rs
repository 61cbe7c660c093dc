//! The optimizer steps that a program has recorded so far, counted in its growing trace.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use memlab_units::format;

/// Beginning of the record of a step's end.
const STEP: &[u8] = b"[\"step\",";

/// Bytes that are read at once: more than a line has.
const PART_BYTES: u64 = 1 << 20;

/// Steps in a trace that grows.
pub struct RecordedSteps {
    trace: PathBuf,
    /// End of the last whole line that was read.
    offset: u64,
    steps: u32,
    /// Time since the start of the program at which the first and the last of these steps were seen.
    seen: Option<(Duration, Duration)>,
}

impl RecordedSteps {
    pub fn of(trace: &Path) -> Self {
        Self { trace: trace.to_owned(), offset: 0, steps: 0, seen: None }
    }

    /// Describes the progress of a program that has run for `elapsed`: its step and the time that is left, as
    /// `step 2 of 4, about 3 s left`.
    pub fn progress(&mut self, elapsed: Duration, wanted: u32) -> String {
        let before = self.steps;
        // An unreadable trace is reported when the program has ended.
        let _ = self.read();
        if self.steps > before {
            let first = self.seen.map_or(elapsed, |(first, _)| first);
            self.seen = Some((first, elapsed));
        }
        match self.steps {
            0 if self.offset == 0 => format!("starting the program, {}", time(elapsed)),
            0 => format!("before the first step, {}", time(elapsed)),
            steps if steps >= wanted => format!("{steps} steps recorded, evaluating and ending, {}", time(elapsed)),
            steps => {
                let left = self.seen.filter(|_| steps > 1).map_or_else(String::new, |(first, last)| {
                    format!(", about {} left", time((last - first) / (steps - 1) * (wanted - steps)))
                });
                format!("step {} of {wanted}{left}", steps + 1)
            }
        }
    }

    /// Counts the steps in the lines that were written since the last call.
    fn read(&mut self) -> std::io::Result<()> {
        let mut file = File::open(&self.trace)?;
        let mut part = Vec::new();
        loop {
            file.seek(SeekFrom::Start(self.offset))?;
            part.clear();
            file.by_ref().take(PART_BYTES).read_to_end(&mut part)?;
            let before = self.offset;
            // The file is enlarged by zeros before it is written.
            let written = part.split(|byte| *byte == 0).next().unwrap_or_default();
            for line in written.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n")) {
                self.offset += line.len() as u64;
                self.steps += u32::from(line.starts_with(STEP));
            }
            if self.offset == before {
                return Ok(());
            }
        }
    }
}

/// Time to the second.
fn time(time: Duration) -> String {
    match time.as_secs() {
        seconds @ ..60 => format!("{seconds} s"),
        seconds => format::duration(seconds * 1_000_000_000),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn steps_are_counted_while_the_trace_grows() {
        // GIVEN a trace that does not exist yet
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("run.jsonl");
        let mut steps = RecordedSteps::of(&path);
        assert_eq!(steps.progress(Duration::from_secs(1), 4), "starting the program, 1 s");
        // WHEN lines follow, the last of them half written and followed by zeros
        let mut file = File::create(&path).expect("a file");
        let mut put = |bytes: &[u8]| file.write_all(bytes).expect("written");
        put(b"{\"memlab\":1}\n[\"a\",1,1]\n");
        assert_eq!(steps.progress(Duration::from_secs(2), 4), "before the first step, 2 s");
        put(b"[\"step\",5,1,0]\n[\"st");
        // THEN only whole lines count
        assert_eq!(steps.progress(Duration::from_secs(3), 4), "step 2 of 4");
        put(b"ep\",9,1,1]\n\0\0\0");
        // AND the time that is left follows from the steps
        assert_eq!(steps.progress(Duration::from_secs(5), 4), "step 3 of 4, about 4 s left");
        assert_eq!(steps.progress(Duration::from_secs(6), 2), "2 steps recorded, evaluating and ending, 6 s");
    }
}
