//! Reading parts of files to where they belong in the arena.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::{Arena, in_parallel, pieces};
use crate::error::{Error, Result};

/// Bytes of a file, and where they go.
#[derive(Clone, Debug)]
pub struct Part {
    pub path: PathBuf,
    pub file_offset: u64,
    pub arena_offset: u64,
    pub bytes: u64,
}

const PIECE: u64 = 16 << 20;

pub(super) fn read(arena: &Arena, parts: &[Part]) -> Result<()> {
    let mut files: HashMap<&Path, File> = HashMap::new();
    for part in parts {
        if !files.contains_key(part.path.as_path()) {
            let file = File::open(&part.path).map_err(|error| Error::File { path: part.path.clone(), error })?;
            files.insert(&part.path, file);
        }
        arena.at(part.arena_offset, part.bytes)?;
    }
    let jobs: Vec<_> =
        parts.iter().flat_map(|part| pieces(part.bytes, PIECE).into_iter().map(move |piece| (part, piece))).collect();
    in_parallel(jobs.len(), |index| {
        let (part, piece) = &jobs[index];
        let failed = |error| Error::File { path: part.path.clone(), error };
        let bytes = (piece.end - piece.start) as usize;
        let to = arena.at(part.arena_offset + piece.start, bytes as u64)?;
        // SAFETY: inside the mapping, and nobody else writes there: the caller of `Arena::read` gives each byte one part.
        let buffer = unsafe { std::slice::from_raw_parts_mut(to, bytes) };
        let file = &files[part.path.as_path()];
        file.read_exact_at(buffer, part.file_offset + piece.start).map_err(|error| {
            failed(match error.kind() {
                io::ErrorKind::UnexpectedEof => io::Error::new(
                    error.kind(),
                    format!(
                        "the file ends before byte {}: it was cut short, fetch it again",
                        part.file_offset + part.bytes
                    ),
                ),
                _ => error,
            })
        })
    })
}
