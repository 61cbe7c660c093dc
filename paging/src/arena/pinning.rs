//! Pins the arena, so that the device's copy engine reads it directly.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::mapping::{Arena, PinnedChunks, threads};
use crate::cuda_driver::Device;
use crate::error::size;
use crate::parallel::in_parallel;

impl Arena {
    /// Pins the whole arena for all devices, chunk by chunk, and returns true on success.
    ///
    /// A refusal is not an error: copies from pageable memory are slower, and [`pin_failure`](Self::pin_failure) returns the
    /// reason.
    pub fn pin(&self, device: i32) -> bool {
        let mut pinned = self.pinned.lock();
        if pinned.is_all {
            return true;
        }
        match Device::open(device) {
            Ok(device) => self.pin_chunks(&mut pinned, device),
            Err(error) => pinned.failure = Some(format!("nothing could be pinned: {error}")),
        }
        pinned.is_all
    }

    fn pin_chunks(&self, pinned: &mut PinnedChunks, device: Arc<Device>) {
        let missing: Vec<_> =
            self.chunks.iter().filter(|chunk| !chunk.is_empty() && !pinned.chunks.contains(&chunk.start)).collect();
        let done = Mutex::new(Vec::new());
        let exposed = AtomicBool::new(pinned.is_exposed);
        // Committing and zeroing pages takes most of the time, and several threads can do it at once.
        let outcome = in_parallel(threads(), missing.len(), |index| {
            let chunk = missing[index];
            let address = self.address + chunk.start as usize;
            let bytes = (chunk.end - chunk.start) as usize;
            let _current = device.make_current()?;
            match &self.shared {
                Some(shared) if chunk.end <= shared.bytes() => {
                    populate(address, bytes, libc::MADV_POPULATE_READ);
                    if device.pin_read_only(address as u64, bytes).is_err() {
                        shared.while_writable(chunk.start, bytes, || device.pin(address as u64, bytes))?;
                        exposed.store(true, Ordering::Relaxed);
                    }
                }
                _ => {
                    populate(address, bytes, libc::MADV_POPULATE_WRITE);
                    device.pin(address as u64, bytes)?;
                }
            }
            done.lock().push(chunk.start);
            Ok(())
        });
        pinned.chunks.extend(done.into_inner());
        pinned.is_exposed = exposed.into_inner();
        pinned.device = Some(device);
        if !pinned.chunks.is_empty() {
            // The kernel would replace pages shared with a forked child on the next write, and the device would still read
            // the old pages.
            self.advise(libc::MADV_DONTFORK);
        }
        match outcome {
            Ok(()) => (pinned.is_all, pinned.failure) = (true, None),
            Err(error) => {
                let had: u64 = pinned.chunks.iter().map(|&start| self.chunk_end(start) - start).sum();
                pinned.failure = Some(format!(
                    "the system pins no more than {} ({error}): {} stay pageable and are copied more slowly; \
                     raise `ulimit -l` or the container's memory limit, or close programs that pin memory",
                    size(had),
                    size(self.bytes - had),
                ));
            }
        }
    }

    /// Returns true if the shared part is pinned read-only, so that the device cannot write to it.
    pub fn is_shielded(&self) -> bool {
        !self.pinned.lock().is_exposed
    }

    /// Returns true if a child forked now inherits the bytes.
    ///
    /// It does not inherit pinned pages that are private to this process.
    pub fn is_inherited(&self) -> bool {
        self.shared_bytes() == self.bytes || self.pinned.lock().chunks.is_empty()
    }

    /// Makes the arena pageable again.
    ///
    /// No copy may be in progress.
    pub fn unpin(&self) {
        let pinned = &mut *self.pinned.lock();
        (pinned.is_all, pinned.is_exposed) = (false, false);
        let Some(device) = pinned.device.take() else { return };
        let Ok(_current) = device.make_current() else { return };
        for start in pinned.chunks.drain(..) {
            device.unpin(self.address as u64 + start);
        }
        self.advise(libc::MADV_DOFORK);
    }

    /// Advises the kernel about the private part only.
    ///
    /// A fork copies no pages of the shared part.
    fn advise(&self, advice: libc::c_int) {
        let shared = self.shared_bytes() as usize;
        let own = ptr::with_exposed_provenance_mut(self.address + shared);
        // SAFETY: the range is in this arena's mapping, and the advice changes no byte of it.
        unsafe { libc::madvise(own, self.length() - shared, advice) };
    }
}

/// Makes the kernel commit the pages at once.
///
/// Where the kernel does not support that, pinning commits them.
fn populate(address: usize, bytes: usize, advice: libc::c_int) {
    // SAFETY: the range is inside the arena's mapping, and the advice changes no byte of it.
    unsafe { libc::madvise(ptr::with_exposed_provenance_mut(address), bytes, advice) };
}
