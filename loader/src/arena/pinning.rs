//! Pinning the arena, so that the device's copy engine reads it directly.

use std::ptr;
use std::sync::Arc;

use parking_lot::Mutex;

use super::mapping::{Arena, Pinned, threads};
use crate::cuda_driver::Device;
use crate::error::size;
use crate::parallel::in_parallel;

impl Arena {
    /// Pins all of it for all devices, in chunks; returns whether that succeeded. A refusal is not an error: pageable memory is
    /// copied more slowly, and [`pin_failure`](Self::pin_failure) says why.
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

    fn pin_chunks(&self, pinned: &mut Pinned, device: Arc<Device>) {
        let missing: Vec<_> =
            self.chunks.iter().filter(|chunk| !chunk.is_empty() && !pinned.chunks.contains(&chunk.start)).collect();
        let done = Mutex::new(Vec::new());
        // Most of the time goes into committing and zeroing pages, which several threads can do at once.
        let outcome = in_parallel(threads(), missing.len(), |index| {
            let chunk = missing[index];
            let address = self.address + chunk.start as usize;
            let bytes = (chunk.end - chunk.start) as usize;
            populate(address, bytes);
            let _current = device.make_current()?;
            device.pin(address as u64, bytes)?;
            done.lock().push(chunk.start);
            Ok(())
        });
        pinned.chunks.extend(done.into_inner());
        pinned.device = Some(device);
        if !pinned.chunks.is_empty() {
            // Pages shared with a forked child would be replaced on the next write, and the device would still read the old
            // ones.
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

    /// Makes it pageable again. No copy may be in progress.
    pub fn unpin(&self) {
        let pinned = &mut *self.pinned.lock();
        pinned.is_all = false;
        let Some(device) = pinned.device.take() else { return };
        let Ok(_current) = device.make_current() else { return };
        for start in pinned.chunks.drain(..) {
            device.unpin(self.address as u64 + start);
        }
        self.advise(libc::MADV_DOFORK);
    }

    fn advise(&self, advice: libc::c_int) {
        // SAFETY: the range is this arena's mapping, and the advice changes no byte of it.
        unsafe { libc::madvise(ptr::with_exposed_provenance_mut(self.address), self.length(), advice) };
    }
}

/// Has the kernel commit the pages at once. Where it does not support that, pinning commits them.
fn populate(address: usize, bytes: usize) {
    // SAFETY: the range is inside the arena's mapping, and the advice changes no byte of it.
    unsafe { libc::madvise(ptr::with_exposed_provenance_mut(address), bytes, libc::MADV_POPULATE_WRITE) };
}
