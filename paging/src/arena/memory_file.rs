//! Anonymous host memory with a file descriptor, so that processes can map the same pages.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};

use crate::error::{Error, Result, size};

/// Memory is mapped, shared and pinned in multiples of this size.
pub const PAGE_SIZE: u64 = 4096;

/// Fixes the size, so that a reading process can rely on the pages.
const SEALS: SealFlags = SealFlags::GROW.union(SealFlags::SHRINK).union(SealFlags::SEAL);

/// A memfd of fixed size.
///
/// The memory is freed when no process has it open or mapped, even after a crash.
#[derive(Debug)]
pub struct MemoryFile {
    descriptor: OwnedFd,
    bytes: u64,
}

impl MemoryFile {
    /// Creates memory filled with zeros.
    ///
    /// Pages are committed on the first write.
    ///
    /// # Errors
    ///
    /// If `bytes` is not a multiple of the page size, or the system refuses.
    pub fn new(bytes: u64) -> Result<Self> {
        if bytes == 0 || !bytes.is_multiple_of(PAGE_SIZE) {
            return Err(Error::Invalid(format!("{bytes} bytes to share are not a multiple of {PAGE_SIZE}")));
        }
        let refused = |error| Error::Memory(format!("the system gave no memory of {} to share ({error})", size(bytes)));
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let descriptor = memfd_create(c"memlab-weights", flags).map_err(refused)?;
        ftruncate(&descriptor, bytes).map_err(refused)?;
        fcntl_add_seals(&descriptor, SEALS).map_err(refused)?;
        Ok(Self { descriptor, bytes })
    }

    /// Wraps memory that another process created.
    ///
    /// # Errors
    ///
    /// If it is not a memory file of this size, or could still shrink while pages are read.
    pub fn received(descriptor: OwnedFd, bytes: u64) -> Result<Self> {
        let found = fstat(&descriptor).map(|status| status.st_size as u64).unwrap_or(0);
        let sealed = fcntl_get_seals(&descriptor).is_ok_and(|seals| seals.contains(SEALS));
        if found != bytes || !sealed {
            return Err(Error::Failed(format!(
                "a process offered {found} bytes to share where {bytes} bytes of sealed memory were expected"
            )));
        }
        Ok(Self { descriptor, bytes })
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl AsFd for MemoryFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
