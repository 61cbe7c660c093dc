//! Reads the program's source files.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;

use crate::config::config;

/// Maximum size of a file that is read.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// Reads a source file, unless it was changed since the program began: its present text did not run.
///
/// `co_filename` may be any path. Only regular files are read, since reading others could block.
///
/// # Errors
///
/// If the file cannot be read, is no regular file, is too large, or was changed.
pub fn read(file: &str) -> io::Result<Vec<u8>> {
    let open = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(file)?;
    let found = open.metadata()?;
    if !found.is_file() || found.len() > MAX_FILE_BYTES || found.modified()? > config().began {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut bytes = Vec::new();
    open.take(MAX_FILE_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}
