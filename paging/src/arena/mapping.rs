//! One mapping of host memory, and the chunks in which it is pinned.

use std::ops::Range;
use std::ptr;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::memory_file::{MemoryFile, PAGE_SIZE};
use super::shared_part::SharedPart;
use crate::checkpoint::{FileRange, read_parts};
use crate::cuda_driver::Device;
use crate::error::{Error, Result, size};
use crate::parallel::{cores, in_parallel, pieces};

/// Size of a chunk pinned by one call.
///
/// Some systems refuse larger ones. No copy crosses a border between two chunks.
pub const PIN_GRANULE: u64 = 1 << 30;

/// One mapping of host memory.
///
/// It is anonymous, except for a part that other processes may share. Pages are committed on the first write.
///
/// The pipeline's copies and the code that holds the address access the same bytes, so all access is by address. Code that
/// writes to bytes during a copy must have them copied again.
pub struct Arena {
    pub(super) address: usize,
    pub(super) bytes: u64,
    pub(super) chunks: Vec<Range<u64>>,
    pub(super) pinned: Mutex<PinnedChunks>,
    pub(super) shared: Option<SharedPart>,
}

impl Arena {
    /// Reserves address space for `bytes`.
    ///
    /// # Errors
    ///
    /// If the system has no such range of addresses.
    pub fn new(bytes: u64) -> Result<Self> {
        let address = reserve(bytes)?;
        let starts = (0..bytes.max(1)).step_by(PIN_GRANULE as usize);
        let chunks = starts.map(|start| start..bytes.min(start + PIN_GRANULE)).collect();
        Ok(Self { address, bytes, chunks, pinned: Mutex::default(), shared: None })
    }

    /// Reserves `bytes`, with borders between pinned chunks at the given offsets.
    ///
    /// Offsets are multiples of 4096, because a page can only be pinned once. The driver refuses a copy across a border, so
    /// place borders between tensors.
    ///
    /// # Errors
    ///
    /// If a border is not a multiple of 4096, or not between the previous one and the end, or the system has no such range
    /// of addresses.
    pub fn with_borders(bytes: u64, borders: &[u64]) -> Result<Self> {
        let mut chunks = Vec::with_capacity(borders.len() + 1);
        let mut start = 0;
        for &border in borders {
            if border <= start || border >= bytes || border % PAGE_SIZE != 0 {
                return Err(Error::Invalid(format!(
                    "border {border} of an arena of {bytes} bytes is not a multiple of {PAGE_SIZE} after the one before"
                )));
            }
            chunks.push(start..border);
            start = border;
        }
        chunks.push(start..bytes);
        Ok(Self { address: reserve(bytes)?, bytes, chunks, pinned: Mutex::default(), shared: None })
    }

    /// Reserves `bytes` like [`with_borders`](Self::with_borders), with the first bytes in memory that processes share.
    ///
    /// The shared memory must end at a border or at the end. The process that fills it passes `writable`, and can write to
    /// it until [`protect`](Self::protect).
    ///
    /// # Errors
    ///
    /// Those of [`with_borders`](Self::with_borders), and if the shared memory ends anywhere else.
    pub fn sharing(bytes: u64, borders: &[u64], file: Arc<MemoryFile>, writable: bool) -> Result<Self> {
        if file.bytes() != bytes && !borders.contains(&file.bytes()) {
            return Err(Error::Invalid(format!(
                "{} shared bytes of an arena of {bytes} end at none of its borders",
                file.bytes()
            )));
        }
        let mut arena = Self::with_borders(bytes, borders)?;
        arena.shared = Some(SharedPart::map(file, arena.address, writable)?);
        Ok(arena)
    }

    /// Size of the shared part at the start, which other processes may map too.
    pub fn shared_bytes(&self) -> u64 {
        self.shared.as_ref().map_or(0, SharedPart::bytes)
    }

    /// Address of the private view of the shared part.
    ///
    /// The program may write here, and sees only its own writes.
    pub fn view_address(&self) -> Option<u64> {
        self.shared.as_ref().map(SharedPart::view)
    }

    /// Makes the shared part read-only.
    ///
    /// # Errors
    ///
    /// If the system refuses.
    pub fn protect(&self) -> Result<()> {
        self.shared.as_ref().map_or(Ok(()), SharedPart::protect)
    }

    /// Address of the first byte.
    pub fn address(&self) -> u64 {
        self.address as u64
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// End of the pinned chunk that contains `offset`.
    pub(crate) fn chunk_end(&self, offset: u64) -> u64 {
        let after = self.chunks.partition_point(|chunk| chunk.end <= offset);
        self.chunks.get(after).map_or(self.bytes, |chunk| chunk.end)
    }

    /// Returns true if the whole arena is pinned.
    pub fn is_pinned(&self) -> bool {
        self.pinned.lock().is_all
    }

    /// Reason why the last attempt did not pin the whole arena.
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
    /// `from` is readable for `bytes`, and none of them are written meanwhile.
    pub unsafe fn fill(&self, offset: u64, from: u64, bytes: u64) -> Result<()> {
        let to = self.at(offset, bytes)?.expose_provenance();
        self.refuse_writing(offset, bytes)?;
        let pieces: Vec<_> = pieces(bytes, COPY_PIECE_BYTES).collect();
        in_parallel(threads(), pieces.len(), |index| {
            let Range { start, end } = pieces[index].clone();
            let source = ptr::with_exposed_provenance::<u8>((from + start) as usize);
            let target = ptr::with_exposed_provenance_mut::<u8>(to + start as usize);
            // SAFETY: `at` checked that the target is inside the mapping, the caller promises a readable source, and pieces do
            // not overlap.
            unsafe { ptr::copy(source, target, (end - start) as usize) };
            Ok(())
        })
    }

    /// Compares the `bytes` at `offset` with host memory at `from`, on several threads.
    ///
    /// Returns true if they differ.
    ///
    /// # Errors
    ///
    /// If the bytes are not inside the arena.
    ///
    /// # Safety
    ///
    /// `from` is readable for `bytes`, and no thread writes to either range meanwhile.
    pub unsafe fn differs(&self, offset: u64, from: u64, bytes: u64) -> Result<bool> {
        let ours = self.at(offset, bytes)?.expose_provenance() as u64;
        let pieces: Vec<_> = pieces(bytes, COPY_PIECE_BYTES).collect();
        let differs = AtomicBool::new(false);
        in_parallel(threads(), pieces.len(), |index| {
            let Range { start, end } = pieces[index].clone();
            // SAFETY: `at` checked that one is inside the mapping, and the caller promises that the other is readable.
            let [ours, theirs] = [ours, from].map(|first| unsafe {
                slice::from_raw_parts(
                    ptr::with_exposed_provenance::<u8>((first + start) as usize),
                    (end - start) as usize,
                )
            });
            if !differs.load(Ordering::Relaxed) && ours != theirs {
                differs.store(true, Ordering::Relaxed);
            }
            Ok(())
        })?;
        Ok(differs.into_inner())
    }

    /// Reads parts of files to their offsets, on several threads.
    ///
    /// # Errors
    ///
    /// If a part does not fit, two overlap, or a file cannot be read or is too short.
    pub fn read(&self, parts: &[FileRange]) -> Result<()> {
        for part in parts {
            self.refuse_writing(part.offset, part.bytes)?;
        }
        // SAFETY: the destination is this mapping; the caller fills it and does not use it meanwhile.
        unsafe { read_parts(parts, self.at(0, 0)?, self.bytes) }
    }

    /// Returns the address of `bytes` at `offset`, or an error if they are not inside the arena.
    pub(crate) fn at(&self, offset: u64, bytes: u64) -> Result<*mut u8> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(ptr::with_exposed_provenance_mut(self.address + offset as usize)),
            _ => Err(Error::Invalid(format!(
                "{bytes} bytes at offset {offset} are not inside the arena, which has {}",
                self.bytes
            ))),
        }
    }

    fn refuse_writing(&self, offset: u64, bytes: u64) -> Result<()> {
        match &self.shared {
            Some(shared) if bytes > 0 && offset < shared.bytes() && !shared.is_writable() => Err(Error::Invalid(
                format!("{bytes} bytes at offset {offset} are shared with other processes, and were filled already"),
            )),
            _ => Ok(()),
        }
    }

    /// The length of the mapping.
    pub(super) fn length(&self) -> usize {
        (self.bytes as usize).max(1)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        self.unpin();
        // SAFETY: mapped in `reserve`; everything that copies from it holds an Arc to it.
        unsafe { libc::munmap(ptr::with_exposed_provenance_mut(self.address), self.length()) };
    }
}

/// Size of a huge page.
///
/// Aligned huge pages are faulted in and pinned many times faster.
const HUGE_PAGE: usize = 2 << 20;

/// Maps `bytes` at an address aligned to a huge page, without committing memory.
fn reserve(bytes: u64) -> Result<usize> {
    let refused = |why: String| {
        Error::Memory(format!("the system gave no address space for an arena of {} ({why})", size(bytes)))
    };
    let length = usize::try_from(bytes).map_err(|_| refused("more than an address can say".into()))?.max(1);
    // SAFETY: a new anonymous mapping aliases nothing. Only its start and end are unmapped. The advice changes no byte of
    // it, and may be refused.
    unsafe {
        let mapping = libc::mmap(
            ptr::null_mut(),
            length.checked_add(HUGE_PAGE).ok_or_else(|| refused("more than an address can say".into()))?,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        );
        if mapping == libc::MAP_FAILED {
            return Err(refused(std::io::Error::last_os_error().to_string()));
        }
        let before = mapping.align_offset(HUGE_PAGE);
        let address = mapping.byte_add(before);
        let end = length.next_multiple_of(PAGE_SIZE as usize);
        if before > 0 {
            libc::munmap(mapping, before);
        }
        libc::munmap(address.byte_add(end), length + HUGE_PAGE - before - end);
        libc::madvise(address, length, libc::MADV_HUGEPAGE);
        Ok(address.expose_provenance())
    }
}

/// Bytes that a thread copies at a time: large enough to amortize the overhead, small enough to balance the load.
const COPY_PIECE_BYTES: u64 = 8 << 20;

/// A few threads saturate the memory of one socket.
const MAX_THREADS: usize = 8;

pub(super) fn threads() -> usize {
    cores().min(MAX_THREADS)
}

/// The pinned chunks, and the device whose context pinned them.
#[derive(Default)]
pub(super) struct PinnedChunks {
    pub(super) device: Option<Arc<Device>>,
    pub(super) chunks: Vec<u64>,
    pub(super) is_all: bool,
    pub(super) failure: Option<String>,
    /// True if part of the shared memory is pinned in a way that lets the device write to it.
    pub(super) is_exposed: bool,
}
