//! Source files, as traces name them.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

/// No source file worth showing is larger.
const LARGEST: u64 = 4 << 20;

/// The lines of a source file, or why there are none to show.
pub type Source = Result<Arc<[String]>, String>;

/// Reads a source file. A trace may name any file: only ordinary ones of a decent size are read, and none that would keep
/// the reader waiting. The files of /proc and /sys are ordinary to look at, but empty.
pub fn read(file: &str) -> Source {
    let open = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(file);
    let open = open.map_err(|_| "not on this machine, or no longer there".to_owned())?;
    let is_source = open.metadata().is_ok_and(|found| found.is_file() && (1..=LARGEST).contains(&found.len()));
    if !is_source {
        return Err("no source file".to_owned());
    }
    let mut bytes = Vec::new();
    open.take(LARGEST).read_to_end(&mut bytes).map_err(|error| format!("cannot be read: {error}"))?;
    Ok(String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_source_is_not_read() {
        for file in ["/proc/self/pagemap", "/proc/self/status", "/dev/zero", "/dev", "/nowhere/at/all.py", ""] {
            assert!(read(file).is_err(), "{file}");
        }
        assert!(read(concat!(env!("CARGO_MANIFEST_DIR"), "/src/source.rs")).is_ok_and(|lines| lines.len() > 20));
    }
}
