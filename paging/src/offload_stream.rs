//! Copies device memory to the host and back: tensors that autograd keeps for backward, while they are unused.
//!
//! All copies of an offload stream run on one stream, so they complete in the order of the calls. When the owner of a place
//! on the host is dropped, the next copy can use the place at once, and the host never waits.

mod host_ranges;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::backend::{ActiveDevice, Backend, Cuda, Event, Host, Stream, Transfer};
use crate::error::{Error, Result};
use crate::events::{EventId, Events};
use host_ranges::{HostRanges, PieceRange};

/// A stream of copies, and the host memory that they use.
pub struct OffloadStream {
    shared: Arc<OffloadStreamCore>,
}

struct OffloadStreamCore {
    backend: Arc<dyn Backend>,
    device: Option<i32>,
    stream: Stream,
    state: Mutex<OffloadStreamState>,
}

#[derive(Default)]
struct OffloadStreamState {
    ranges: HostRanges,
    events: Events,
    /// Pairs of timed events around copies, and the bytes copied between them.
    timed: Option<Vec<(Event, Event, u64)>>,
}

/// Bytes of device memory on the host.
///
/// Dropping it frees the place.
pub struct HostCopy {
    shared: Arc<OffloadStreamCore>,
    place: PieceRange,
    bytes: u64,
    saved: EventId,
    loaded: Mutex<Option<EventId>>,
}

impl OffloadStream {
    /// Creates an offload stream of a CUDA device, by ordinal, or of the host.
    ///
    /// Copies of the host are no faster than `bytes_per_second`.
    ///
    /// # Errors
    ///
    /// If the device does not exist, or cannot create a stream.
    pub fn new(device: Option<i32>, bytes_per_second: Option<f64>) -> Result<Self> {
        let backend: Arc<dyn Backend> = match device {
            Some(ordinal) => Arc::new(Cuda::open(ordinal)?),
            None => Arc::new(Host::new(bytes_per_second)?),
        };
        let stream = {
            let _active = ActiveDevice::on(&*backend)?;
            backend.create_stream()?
        };
        Ok(Self { shared: Arc::new(OffloadStreamCore { backend, device, stream, state: Mutex::default() }) })
    }

    /// Bytes of host memory that [`grow`](Self::grow) would add to save `bytes`; 0 if a place is free.
    pub fn growth(&self, bytes: u64) -> u64 {
        let mut state = self.shared.state.lock();
        match state.ranges.take(bytes) {
            Some(place) => {
                state.ranges.give(place);
                0
            }
            None => state.ranges.growth(bytes),
        }
    }

    /// Adds pinned host memory.
    ///
    /// # Errors
    ///
    /// [`Error::Memory`] if the system refuses to allocate or pin more.
    pub fn grow(&self, bytes: u64) -> Result<()> {
        self.shared.state.lock().ranges.grow(bytes, self.shared.device)
    }

    /// Bytes of host memory of this stream, used or free.
    pub fn host_bytes(&self) -> u64 {
        self.shared.state.lock().ranges.bytes()
    }

    /// Copies device memory to the host after the work queued on `stream`.
    ///
    /// Returns `None` if no place is free.
    ///
    /// # Errors
    ///
    /// If the device refuses.
    ///
    /// # Safety
    ///
    /// The memory stays valid and unchanged until work that [waits](HostCopy::wait_saved) for the copy.
    pub unsafe fn save(&self, address: u64, bytes: u64, stream: Stream) -> Result<Option<HostCopy>> {
        let shared = &self.shared;
        let _active = ActiveDevice::on(&*shared.backend)?;
        let mut state = shared.state.lock();
        let Some(place) = state.ranges.take(bytes) else { return Ok(None) };
        let queued = shared.queue(&mut state, stream, bytes, |ranges| {
            let mut from = address;
            for (to, bytes) in ranges.parts(place, bytes) {
                // SAFETY: the place is this copy's, and the caller promises the source.
                unsafe { shared.backend.copy_to_host(&Transfer { from, to, bytes }, shared.stream) }?;
                from += bytes;
            }
            Ok(())
        });
        match queued {
            Ok(saved) => {
                let shared = Arc::clone(shared);
                Ok(Some(HostCopy { shared, place, bytes, saved, loaded: Mutex::new(None) }))
            }
            Err(error) => {
                state.ranges.give(place);
                Err(error.while_doing(|| "saving activations".into()))
            }
        }
    }

    /// Turns the timing of copies on or off.
    pub fn set_timed(&self, on: bool) {
        let mut state = self.shared.state.lock();
        match (on, state.timed.is_some()) {
            (true, false) => state.timed = Some(Vec::new()),
            (false, true) => {
                let pairs = state.timed.take().unwrap_or_default();
                self.shared.destroy_pairs(pairs);
            }
            _ => {}
        }
    }

    /// Bytes per second of the copies since [`set_timed`](Self::set_timed); `None` without copies.
    ///
    /// Waits for them.
    ///
    /// # Errors
    ///
    /// If the device has failed.
    pub fn bytes_per_second(&self) -> Result<Option<f64>> {
        let shared = &self.shared;
        let _active = ActiveDevice::on(&*shared.backend)?;
        let pairs = shared.state.lock().timed.as_mut().map(std::mem::take).unwrap_or_default();
        let (mut bytes, mut ns) = (0, 0);
        let read = pairs.iter().try_for_each(|&(begin, end, copied)| {
            bytes += copied;
            ns += shared.backend.elapsed_ns(begin, end)?;
            Ok(())
        });
        shared.destroy_pairs(pairs);
        read?;
        Ok((ns > 0).then(|| bytes as f64 * 1e9 / ns as f64))
    }

    /// Blocks the host until all copies are done.
    ///
    /// # Errors
    ///
    /// If the device, or a copy, has failed.
    pub fn synchronize(&self) -> Result<()> {
        let _active = ActiveDevice::on(&*self.shared.backend)?;
        self.shared.backend.synchronize(self.shared.stream)
    }
}

impl OffloadStreamCore {
    /// Queues copies of `bytes` behind the work queued on `stream`.
    ///
    /// Returns the event after them, with one user.
    fn queue(
        &self,
        state: &mut OffloadStreamState,
        stream: Stream,
        bytes: u64,
        copies: impl FnOnce(&HostRanges) -> Result<()>,
    ) -> Result<EventId> {
        let backend = &*self.backend;
        let done = state.events.acquire(backend)?;
        let event = state.events.event(done);
        let queued = (|| {
            // The same event serves before and after the copies: waiting for it here takes its current state.
            backend.record(event, stream)?;
            backend.wait(self.stream, event)?;
            let began = match &state.timed {
                Some(_) => {
                    let began = backend.create_event(true)?;
                    backend.record(began, self.stream)?;
                    Some(began)
                }
                None => None,
            };
            copies(&state.ranges)?;
            if let (Some(began), Some(timed)) = (began, &mut state.timed) {
                let ended = backend.create_event(true)?;
                timed.push((began, ended, bytes));
                backend.record(ended, self.stream)?;
            }
            backend.record(event, self.stream)
        })();
        match queued {
            Ok(()) => Ok(done),
            Err(error) => {
                state.events.release(done);
                Err(error)
            }
        }
    }

    /// Makes later work on `stream` wait for an event.
    fn wait(&self, id: EventId, stream: Stream) -> Result<()> {
        let _active = ActiveDevice::on(&*self.backend)?;
        let event = self.state.lock().events.event(id);
        if !self.backend.wait(stream, event)? {
            while !self.backend.block(event, Duration::MAX)? {}
        }
        Ok(())
    }

    fn destroy_pairs(&self, pairs: Vec<(Event, Event, u64)>) {
        for (begin, end, _) in pairs {
            self.backend.destroy_event(begin);
            self.backend.destroy_event(end);
        }
    }
}

impl Drop for OffloadStreamCore {
    fn drop(&mut self) {
        let Ok(_active) = ActiveDevice::on(&*self.backend) else { return };
        self.backend.destroy_stream(self.stream);
        let state = self.state.get_mut();
        state.events.destroy(&*self.backend);
        let pairs = state.timed.take().unwrap_or_default();
        self.destroy_pairs(pairs);
    }
}

impl HostCopy {
    /// Number of bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Makes later work on `stream` wait until the bytes are on the host. (On the host backend, blocks.)
    ///
    /// # Errors
    ///
    /// If the device refuses.
    pub fn wait_saved(&self, stream: Stream) -> Result<()> {
        self.shared.wait(self.saved, stream)
    }

    /// Copies the bytes to device memory after the work queued on `stream`.
    ///
    /// # Errors
    ///
    /// If the device refuses.
    ///
    /// # Safety
    ///
    /// The memory stays valid, and no other code uses it, until work that [waits](Self::wait_loaded) for the copy.
    pub unsafe fn load(&self, address: u64, stream: Stream) -> Result<()> {
        let shared = &*self.shared;
        let _active = ActiveDevice::on(&*shared.backend)?;
        let mut loaded = self.loaded.lock();
        let mut state = shared.state.lock();
        let event = shared.queue(&mut state, stream, self.bytes, |ranges| {
            let mut to = address;
            for (from, bytes) in ranges.parts(self.place, self.bytes) {
                // SAFETY: the place is this copy's, and the caller promises the target.
                unsafe { shared.backend.copy(&Transfer { from, to, bytes }, shared.stream) }?;
                to += bytes;
            }
            Ok(())
        });
        let event = event.map_err(|error| error.while_doing(|| "loading activations".into()))?;
        if let Some(before) = loaded.replace(event) {
            state.events.release(before);
        }
        Ok(())
    }

    /// Makes later work on `stream` wait for the last [`load`](Self::load).
    ///
    /// # Errors
    ///
    /// If nothing was loaded, or the device refuses.
    pub fn wait_loaded(&self, stream: Stream) -> Result<()> {
        let Some(event) = *self.loaded.lock() else {
            return Err(Error::Invalid("these activations are not being loaded".into()));
        };
        self.shared.wait(event, stream)
    }
}

impl Drop for HostCopy {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.ranges.give(self.place);
        state.events.release(self.saved);
        if let Some(loaded) = self.loaded.get_mut().take() {
            state.events.release(loaded);
        }
    }
}
