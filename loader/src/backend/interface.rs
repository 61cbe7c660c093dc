//! What a backend does: copies, and their order.

use std::time::Duration;

use crate::error::Result;

/// A queue of work, as the backend numbers them. For CUDA a `CUstream`; 0 is the legacy default stream.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Stream(pub u64);

/// A mark that is set in one stream and waited for in another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Event(pub u64);

/// One copy from host to device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transfer {
    /// Address in the arena.
    pub from: u64,
    /// Address on the device.
    pub to: u64,
    /// Bytes.
    pub bytes: u64,
}

/// What becomes of work that is queued on a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CaptureStatus {
    /// It is done.
    None,
    /// It becomes a part of a graph; captures are numbered.
    Active(u64),
    /// It was to become one, but the capture has failed and waits for its end.
    Broken,
}

/// Copies and order. No call but [`synchronize`](Self::synchronize) and [`block`](Self::block) makes the host wait.
pub trait Backend: Send + Sync {
    /// Makes the device current for this thread; says whether [`deactivate`](Self::deactivate) has to undo it.
    ///
    /// # Errors
    ///
    /// If the device cannot be made current.
    fn activate(&self) -> Result<bool> {
        Ok(false)
    }

    /// Undoes [`activate`](Self::activate).
    fn deactivate(&self) {}

    /// A stream for copies, which are done one after another.
    ///
    /// # Errors
    ///
    /// If the device makes no stream.
    fn create_stream(&self) -> Result<Stream>;

    /// Ends it; no copy of it is under way afterwards, and what had not begun may be left undone.
    fn destroy_stream(&self, stream: Stream);

    /// An event; `timed` when [`elapsed_ns`](Self::elapsed_ns) is to be asked.
    ///
    /// # Errors
    ///
    /// If the device makes no event.
    fn create_event(&self, timed: bool) -> Result<Event>;
    /// Frees an event.
    fn destroy_event(&self, event: Event);

    /// Sets the mark after all that was queued on the stream so far.
    ///
    /// # Errors
    ///
    /// If the device refuses.
    fn record(&self, event: Event, stream: Stream) -> Result<()>;

    /// Has what is queued on the stream from here on wait for the mark as it is now. False when the stream is the calling thread
    /// itself, which then has to call [`block`](Self::block).
    ///
    /// # Errors
    ///
    /// If the device refuses.
    fn wait(&self, stream: Stream, event: Event) -> Result<bool>;

    /// Waits on the host, for so long at most; says whether the mark was set.
    ///
    /// # Errors
    ///
    /// If the device, or work before the mark, has failed.
    fn block(&self, event: Event, longest: Duration) -> Result<bool>;

    /// Queues a copy.
    ///
    /// # Errors
    ///
    /// If the device refuses.
    ///
    /// # Safety
    ///
    /// Both ranges stay valid until the copy is done, and who uses the target has ordered itself by events.
    unsafe fn copy(&self, transfer: &Transfer, stream: Stream) -> Result<()>;

    /// Waits on the host for all that is queued.
    ///
    /// # Errors
    ///
    /// If the device, or work on the stream, has failed.
    fn synchronize(&self, stream: Stream) -> Result<()>;

    /// Nanoseconds between two timed marks; waits for the second.
    ///
    /// # Errors
    ///
    /// If one of the marks was never set, or the device has failed.
    fn elapsed_ns(&self, from: Event, to: Event) -> Result<u64>;

    /// Whether work queued on the stream is captured into a graph instead of being done.
    ///
    /// # Errors
    ///
    /// If the device refuses.
    fn capturing(&self, _stream: Stream) -> Result<CaptureStatus> {
        Ok(CaptureStatus::None)
    }

    /// Lets this thread do, until dropped, what a capture under way forbids.
    fn relax_captures(&self) -> RelaxedCaptures<'_> {
        RelaxedCaptures(None)
    }
}

/// What [`Backend::relax_captures`] undoes when dropped.
pub struct RelaxedCaptures<'a>(Option<Box<dyn FnOnce() + 'a>>);

impl<'a> RelaxedCaptures<'a> {
    /// Calls `undo` when it is dropped.
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

/// The device is current for this thread while it lives.
pub(crate) struct Active<'a>(Option<&'a dyn Backend>);

impl<'a> Active<'a> {
    pub fn on(backend: &'a dyn Backend) -> Result<Self> {
        Ok(Self(backend.activate()?.then_some(backend)))
    }
}

impl Drop for Active<'_> {
    fn drop(&mut self) {
        if let Some(backend) = self.0 {
            backend.deactivate();
        }
    }
}
