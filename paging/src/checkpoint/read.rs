//! Reads parts of files into memory, on several threads.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::file::open;
use crate::error::{Error, Result};
use crate::parallel::{cores, in_parallel, pieces};

/// A range of a file, and its destination.
#[derive(Clone, Debug)]
pub struct FileRange {
    /// The file.
    pub path: PathBuf,
    /// Offset of the first byte in the file.
    pub file_offset: u64,
    /// Offset of the first byte in the destination.
    pub offset: u64,
    /// Number of bytes.
    pub bytes: u64,
}

/// Bytes that a thread reads in one call: long enough for a disk, short enough to balance the load.
const READ_BYTES: u64 = 16 << 20;
/// A disk is fastest with several pending requests, even on a machine with few cores.
const MIN_THREADS: usize = 8;
const MAX_THREADS: usize = 16;

struct Job<'a> {
    file: &'a File,
    path: &'a Path,
    file_offset: u64,
    offset: u64,
    bytes: u64,
}

/// Reads all parts to their offsets in the destination of `length` bytes.
///
/// After an error, the contents of the destination are undefined.
///
/// # Errors
///
/// If a part does not fit, two overlap, or a file cannot be read or is too short.
///
/// # Safety
///
/// No other code reads or writes the destination meanwhile.
pub unsafe fn read_parts(parts: &[FileRange], destination: *mut u8, length: u64) -> Result<()> {
    check_disjoint(parts, length)?;
    let files = open_all(parts)?;
    let mut jobs = Vec::new();
    for part in parts {
        let (file, size) = &files[part.path.as_path()];
        if part.file_offset.checked_add(part.bytes).is_none_or(|end| end > *size) {
            return Err(cut_short(&part.path, *size, part.file_offset, part.bytes));
        }
        let path = part.path.as_path();
        jobs.extend(pieces(part.bytes, READ_BYTES).map(|piece| Job {
            file,
            path,
            file_offset: part.file_offset + piece.start,
            offset: part.offset + piece.start,
            bytes: piece.end - piece.start,
        }));
    }
    let destination = destination.expose_provenance();
    in_parallel(cores().clamp(MIN_THREADS, MAX_THREADS), jobs.len(), |index| {
        let job = &jobs[index];
        let target = std::ptr::with_exposed_provenance_mut(destination + job.offset as usize);
        // SAFETY: `check_disjoint` checked that the part is inside the destination and overlaps no other; the caller excludes
        // other access.
        let target = unsafe { std::slice::from_raw_parts_mut(target, job.bytes as usize) };
        job.file.read_exact_at(target, job.file_offset).map_err(|error| match error.kind() {
            // The file was long enough when it was opened.
            io::ErrorKind::UnexpectedEof => cut_short(job.path, job.file_offset, job.file_offset, job.bytes),
            _ => Error::File { path: job.path.to_owned(), error },
        })
    })
}

/// Checks that every part fits in the destination, and that no two overlap.
fn check_disjoint(parts: &[FileRange], length: u64) -> Result<()> {
    let mut targets: Vec<(u64, u64)> = Vec::with_capacity(parts.len());
    for FileRange { offset, bytes, path, .. } in parts {
        match offset.checked_add(*bytes) {
            Some(end) if end <= length && end <= isize::MAX as u64 => targets.push((*offset, end)),
            _ => {
                let what = format!("{bytes} bytes of {} do not fit at {offset} of {length} bytes", path.display());
                return Err(Error::Invalid(what));
            }
        }
    }
    targets.retain(|(begin, end)| begin < end);
    targets.sort_unstable();
    match targets.windows(2).find(|pair| pair[0].1 > pair[1].0) {
        Some(pair) => Err(Error::Invalid(format!("two parts go to the same place, at {}", pair[1].0))),
        None => Ok(()),
    }
}

/// Opens each file once.
///
/// Returns it with its size.
fn open_all(parts: &[FileRange]) -> Result<HashMap<&Path, (File, u64)>> {
    let mut files = HashMap::new();
    for FileRange { path, .. } in parts {
        if !files.contains_key(path.as_path()) {
            files.insert(path.as_path(), open(path)?);
        }
    }
    Ok(files)
}

fn cut_short(path: &Path, size: u64, offset: u64, bytes: u64) -> Error {
    let what = format!("it ends before the {bytes} bytes at {offset} (at {size}): it was cut short, fetch it again");
    Error::File { path: path.to_owned(), error: io::Error::new(io::ErrorKind::UnexpectedEof, what) }
}
