//! The host memory in which all weights lie, in one piece, in the order in which they are used.

use std::ops::Range;
use std::ptr;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::checkpoint::{Part, read_parts};
use crate::cuda_driver::Device;
use crate::error::{Error, Result, size};
use crate::parallel::{cores, in_parallel, pieces};

/// Pinned in pieces of about so much: larger ones are refused by some systems. Copies never cross a border between two.
pub const CHUNK: u64 = 1 << 30;

/// Borders lie between pages: a page can be pinned once only.
const PAGE: u64 = 4096;

/// One anonymous mapping. Pages come when they are written to.
///
/// Its bytes are shared with the pipeline's copies and with whoever was told the address, so they are reached by address
/// only; who writes to it while a copy of the same bytes is under way has to have them copied again.
pub struct Arena {
    pub(super) address: usize,
    pub(super) bytes: u64,
    pub(super) chunks: Vec<Range<u64>>,
    pub(super) pinned: Mutex<Pinned>,
}

impl Arena {
    /// Reserves address space for `bytes`.
    ///
    /// # Errors
    ///
    /// If the system has no such range of addresses.
    pub fn new(bytes: u64) -> Result<Self> {
        let address = reserve(bytes)?;
        let starts = (0..bytes.max(1)).step_by(CHUNK as usize);
        let chunks = starts.map(|start| start..bytes.min(start + CHUNK)).collect();
        Ok(Self { address, bytes, chunks, pinned: Mutex::default() })
    }

    /// The same with the borders between pinned chunks where the caller wants them, at multiples of 4096: a copy that somebody
    /// else makes across one is refused by the driver, so they best lie between tensors.
    ///
    /// # Errors
    ///
    /// If a border is not a multiple of 4096 between the one before and the end, or the system has no such range of addresses.
    pub fn with_borders(bytes: u64, borders: &[u64]) -> Result<Self> {
        let mut chunks = Vec::with_capacity(borders.len() + 1);
        let mut start = 0;
        for &border in borders {
            if border <= start || border >= bytes || border % PAGE != 0 {
                return Err(Error::Invalid(format!(
                    "border {border} of an arena of {bytes} bytes is not a multiple of {PAGE} after the one before"
                )));
            }
            chunks.push(start..border);
            start = border;
        }
        chunks.push(start..bytes);
        Ok(Self { address: reserve(bytes)?, bytes, chunks, pinned: Mutex::default() })
    }

    /// Where it begins.
    pub fn address(&self) -> u64 {
        self.address as u64
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where the pinned chunk around `offset` ends.
    pub(crate) fn chunk_end(&self, offset: u64) -> u64 {
        let after = self.chunks.partition_point(|chunk| chunk.end <= offset);
        self.chunks.get(after).map_or(self.bytes, |chunk| chunk.end)
    }

    /// Whether all of it is pinned.
    pub fn is_pinned(&self) -> bool {
        self.pinned.lock().is_all
    }

    /// Why not all of it could be pinned, if that was tried.
    pub fn pin_failure(&self) -> Option<String> {
        self.pinned.lock().failure.clone()
    }

    /// Copies `bytes` from host memory at `from` to `offset`, on several threads.
    ///
    /// # Errors
    ///
    /// If the bytes do not fit into the arena.
    ///
    /// # Safety
    ///
    /// `from` is readable for `bytes`, and none of them are written to meanwhile.
    pub unsafe fn fill(&self, offset: u64, from: u64, bytes: u64) -> Result<()> {
        let to = self.at(offset, bytes)?.expose_provenance();
        let pieces: Vec<_> = pieces(bytes, PIECE).collect();
        in_parallel(threads(), pieces.len(), |index| {
            let Range { start, end } = pieces[index].clone();
            let source = ptr::with_exposed_provenance::<u8>((from + start) as usize);
            let target = ptr::with_exposed_provenance_mut::<u8>(to + start as usize);
            // SAFETY: the target is inside the mapping, the caller vouches for the source, and pieces do not overlap.
            unsafe { ptr::copy(source, target, (end - start) as usize) };
            Ok(())
        })
    }

    /// Reads parts of files to where they belong, on several threads.
    ///
    /// # Errors
    ///
    /// If a part does not fit, two overlap, or a file cannot be read or is too short.
    pub fn read(&self, parts: &[Part]) -> Result<()> {
        // SAFETY: the mapping, which the caller fills and does not use meanwhile.
        unsafe { read_parts(parts, self.at(0, 0)?, self.bytes) }
    }

    /// The place of `bytes` at `offset`; an error in words when they are not inside.
    pub(crate) fn at(&self, offset: u64, bytes: u64) -> Result<*mut u8> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(ptr::with_exposed_provenance_mut(self.address + offset as usize)),
            _ => Err(Error::Invalid(format!(
                "{bytes} bytes at offset {offset} are not inside the arena, which has {}",
                self.bytes
            ))),
        }
    }

    /// What the system gave, in whole pages.
    pub(super) fn length(&self) -> usize {
        (self.bytes as usize).max(1)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        self.unpin();
        // SAFETY: mapped in `new`; whoever copies from it holds an Arc to it.
        unsafe { libc::munmap(ptr::with_exposed_provenance_mut(self.address), self.length()) };
    }
}

/// A fresh mapping of so much, without memory behind it yet.
fn reserve(bytes: u64) -> Result<usize> {
    let refused = |why: String| {
        Error::Memory(format!("the system gave no address space for an arena of {} ({why})", size(bytes)))
    };
    let length = usize::try_from(bytes).map_err(|_| refused("more than an address can say".into()))?.max(1);
    // SAFETY: a fresh mapping, which nobody else knows; advice on it, which may be refused.
    unsafe {
        let address = libc::mmap(
            ptr::null_mut(),
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        );
        if address == libc::MAP_FAILED {
            return Err(refused(std::io::Error::last_os_error().to_string()));
        }
        libc::madvise(address, length, libc::MADV_HUGEPAGE);
        Ok(address.expose_provenance())
    }
}

/// What one thread does at a time: large enough to pay for itself, small enough to share out evenly.
const PIECE: u64 = 8 << 20;

/// A few threads saturate the memory of one socket.
const MOST_THREADS: usize = 8;

pub(super) fn threads() -> usize {
    cores().min(MOST_THREADS)
}

/// Which chunks are pinned, and by which device's context.
#[derive(Default)]
pub(super) struct Pinned {
    pub(super) device: Option<Arc<Device>>,
    pub(super) chunks: Vec<u64>,
    pub(super) is_all: bool,
    pub(super) failure: Option<String>,
}
