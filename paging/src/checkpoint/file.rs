//! Opens and reads checkpoint files.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use crate::error::{Error, Result};

/// Opens a regular file and returns it with its size.
///
/// A pipe would block, and a device has no size.
pub(super) fn open(path: &Path) -> Result<(File, u64)> {
    let status = fs::metadata(path).map_err(|error| unreadable(path, error))?;
    if !status.is_file() {
        return Err(malformed(
            path,
            "is no regular file: name a .safetensors file, its index, or their folder".to_string(),
        ));
    }
    let file = File::open(path).map_err(|error| unreadable(path, error))?;
    let bytes = file.metadata().map_err(|error| unreadable(path, error))?.len();
    Ok((file, bytes))
}

/// Reads `bytes`.
///
/// The caller has checked that the file contains them.
pub(super) fn exactly(file: &mut File, path: &Path, bytes: u64) -> Result<Vec<u8>> {
    let mut buffer = Vec::new();
    file.take(bytes).read_to_end(&mut buffer).map_err(|error| unreadable(path, error))?;
    if buffer.len() as u64 == bytes { Ok(buffer) } else { Err(unreadable(path, io::ErrorKind::UnexpectedEof.into())) }
}

pub(super) fn unreadable(path: &Path, error: io::Error) -> Error {
    Error::File { path: path.to_owned(), error }
}

pub(super) fn malformed(path: &Path, what: String) -> Error {
    Error::Invalid(format!("{} {what}", path.display()))
}
