//! The backend interface: copies and their order.

use std::time::Duration;

use crate::error::Result;

/// A queue of work, with the backend's number.
///
/// For CUDA, a `CUstream`; 0 is the legacy default stream.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Stream(pub u64);

/// An event, recorded in one stream and waited for in another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Event(pub u64);

/// One copy between host and device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transfer {
    /// Address of the source.
    pub from: u64,
    /// Address of the target.
    pub to: u64,
    /// Number of bytes.
    pub bytes: u64,
}

/// The capture state of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CaptureStatus {
    /// Work is executed.
    None,
    /// Work becomes part of a graph.
    ///
    /// Contains the number of the capture.
    Active(u64),
    /// The capture has failed and must be ended.
    Broken,
}

/// Copies and their order.
///
/// Only [`synchronize`](Self::synchronize) and [`block`](Self::block) block the host.
pub trait Backend: Send + Sync {
    /// Makes the device current on this thread.
    ///
    /// Returns true if [`deactivate`](Self::deactivate) has to undo that.
    ///
    /// # Errors
    ///
    /// If the device cannot be made current.
    fn activate(&self) -> Result<bool> {
        Ok(false)
    }

    /// Undoes [`activate`](Self::activate).
    fn deactivate(&self) {}

    /// Creates a stream for copies.
    ///
    /// They execute one after another.
    ///
    /// # Errors
    ///
    /// If the device cannot create a stream.
    fn create_stream(&self) -> Result<Stream>;

    /// Destroys a stream.
    ///
    /// No copy is in progress afterwards; copies that had not started may be dropped.
    fn destroy_stream(&self, stream: Stream);

    /// Creates an event.
    ///
    /// `timed` is required for [`elapsed_ns`](Self::elapsed_ns).
    ///
    /// # Errors
    ///
    /// If the device cannot create an event.
    fn create_event(&self, timed: bool) -> Result<Event>;
    /// Frees an event.
    fn destroy_event(&self, event: Event);

    /// Records an event after all work queued on the stream so far.
    ///
    /// # Errors
    ///
    /// If the device refuses.
    fn record(&self, event: Event, stream: Stream) -> Result<()>;

    /// Makes later work on the stream wait for the event as last recorded.
    ///
    /// Returns false if the stream is the calling thread, which then has to call [`block`](Self::block).
    ///
    /// # Errors
    ///
    /// If the device refuses.
    fn wait(&self, stream: Stream, event: Event) -> Result<bool>;

    /// Blocks the host until the event happens, for at most `longest`.
    ///
    /// Returns true if the event happened.
    ///
    /// # Errors
    ///
    /// If the device, or work before the event, has failed.
    fn block(&self, event: Event, longest: Duration) -> Result<bool>;

    /// Queues a copy from the host to the device.
    ///
    /// # Errors
    ///
    /// If the device refuses.
    ///
    /// # Safety
    ///
    /// Both ranges stay valid until the copy is done, and users of the target are ordered by events.
    unsafe fn copy(&self, transfer: &Transfer, stream: Stream) -> Result<()>;

    /// Queues a copy from the device to the host.
    ///
    /// The same as [`copy`](Self::copy) for a backend whose device is the host.
    ///
    /// # Errors
    ///
    /// If the device refuses.
    ///
    /// # Safety
    ///
    /// As for [`copy`](Self::copy).
    unsafe fn copy_to_host(&self, transfer: &Transfer, stream: Stream) -> Result<()> {
        // SAFETY: the caller promises the same.
        unsafe { self.copy(transfer, stream) }
    }

    /// Blocks the host until all work on a stream is done.
    ///
    /// # Errors
    ///
    /// If the device, or work on the stream, has failed.
    fn synchronize(&self, stream: Stream) -> Result<()>;

    /// Returns the nanoseconds between two timed events.
    ///
    /// Waits for the second event.
    ///
    /// # Errors
    ///
    /// If one of the events was never recorded, or the device has failed.
    fn elapsed_ns(&self, from: Event, to: Event) -> Result<u64>;

    /// Returns the capture state of the stream.
    ///
    /// # Errors
    ///
    /// If the device refuses.
    fn capturing(&self, _stream: Stream) -> Result<CaptureStatus> {
        Ok(CaptureStatus::None)
    }

    /// Allows calls on this thread that a capture in progress forbids, until the result is dropped.
    fn relax_captures(&self) -> RelaxedCaptures<'_> {
        RelaxedCaptures(None)
    }
}

/// Undoes [`Backend::relax_captures`] when dropped.
pub struct RelaxedCaptures<'a>(Option<Box<dyn FnOnce() + 'a>>);

impl<'a> RelaxedCaptures<'a> {
    /// Calls `undo` when the result is dropped.
    pub fn until_dropped(undo: impl FnOnce() + 'a) -> Self {
        Self(Some(Box::new(undo)))
    }
}

impl Drop for RelaxedCaptures<'_> {
    fn drop(&mut self) {
        if let Some(undo) = self.0.take() {
            undo();
        }
    }
}

/// Keeps the device current on this thread.
pub(crate) struct ActiveDevice<'a>(Option<&'a dyn Backend>);

impl<'a> ActiveDevice<'a> {
    pub fn on(backend: &'a dyn Backend) -> Result<Self> {
        Ok(Self(backend.activate()?.then_some(backend)))
    }
}

impl Drop for ActiveDevice<'_> {
    fn drop(&mut self) {
        if let Some(backend) = self.0 {
            backend.deactivate();
        }
    }
}
