//! The part of an arena that other processes map too.

use std::os::fd::{AsFd, AsRawFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::memory_file::MemoryFile;
use crate::error::{Error, Result, size};

/// A memory file, mapped twice: over the first bytes of the arena, for pinning and copying, and as a private view.
///
/// The arena's mapping shares its pages with other processes, and is read-only once it is filled. The view shows the same
/// pages. A write to the view gives this process a private copy of the page, so a program cannot change the weights of
/// another process. The view is never pinned, because pinning would give the process private copies of the pages.
pub(super) struct SharedPart {
    file: Arc<MemoryFile>,
    address: usize,
    view: usize,
    writable: AtomicBool,
}

impl SharedPart {
    /// Maps the file over `address`.
    ///
    /// The caller has reserved that many bytes there.
    pub(super) fn map(file: Arc<MemoryFile>, address: usize, writable: bool) -> Result<Self> {
        let length = file.bytes() as usize;
        let protection = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        map(&file, address, protection, libc::MAP_SHARED | libc::MAP_FIXED)?;
        let view = map(&file, 0, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_NORESERVE)?;
        for start in [address, view] {
            // SAFETY: both ranges were mapped above, and the advice changes no byte of them; it may be refused.
            unsafe { libc::madvise(ptr::with_exposed_provenance_mut(start), length, libc::MADV_HUGEPAGE) };
        }
        Ok(Self { file, address, view, writable: AtomicBool::new(writable) })
    }

    pub(super) fn bytes(&self) -> u64 {
        self.file.bytes()
    }

    pub(super) fn view(&self) -> u64 {
        self.view as u64
    }

    pub(super) fn is_writable(&self) -> bool {
        self.writable.load(Ordering::Acquire)
    }

    /// Makes it read-only, permanently.
    pub(super) fn protect(&self) -> Result<()> {
        self.writable.store(false, Ordering::Release);
        self.set_protection(0, self.bytes() as usize, libc::PROT_READ)
    }

    /// Calls `action` while a range is writable.
    ///
    /// Some drivers require that of memory that they pin.
    pub(super) fn while_writable(&self, start: u64, bytes: usize, action: impl FnOnce() -> Result<()>) -> Result<()> {
        self.set_protection(start, bytes, libc::PROT_READ | libc::PROT_WRITE)?;
        let outcome = action();
        if !self.is_writable() {
            self.set_protection(start, bytes, libc::PROT_READ)?;
        }
        outcome
    }

    fn set_protection(&self, start: u64, bytes: usize, protection: libc::c_int) -> Result<()> {
        let address = ptr::with_exposed_provenance_mut(self.address + start as usize);
        // SAFETY: the range is inside the mapping, which is this part's. Code that writes to it checks `is_writable` first.
        match unsafe { libc::mprotect(address, bytes, protection) } {
            0 => Ok(()),
            _ => Err(Error::Failed(format!("mprotect failed: {}", std::io::Error::last_os_error()))),
        }
    }
}

impl Drop for SharedPart {
    fn drop(&mut self) {
        // SAFETY: mapped in `map`; code that has an address in it keeps the arena alive. (The arena unmaps its own range.)
        unsafe { libc::munmap(ptr::with_exposed_provenance_mut(self.view), self.bytes() as usize) };
    }
}

fn map(file: &MemoryFile, address: usize, protection: libc::c_int, flags: libc::c_int) -> Result<usize> {
    let hint = ptr::with_exposed_provenance_mut(address);
    // SAFETY: with MAP_FIXED the range is one that the caller has reserved, and a new mapping aliases nothing otherwise. The file
    // cannot shrink (`MemoryFile`), so all pages exist.
    let mapped = unsafe { libc::mmap(hint, file.bytes() as usize, protection, flags, file.as_fd().as_raw_fd(), 0) };
    if mapped == libc::MAP_FAILED {
        let why = std::io::Error::last_os_error();
        return Err(Error::Memory(format!("{} of shared memory could not be mapped ({why})", size(file.bytes()))));
    }
    Ok(mapped.expose_provenance())
}
