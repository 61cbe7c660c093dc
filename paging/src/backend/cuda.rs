//! A CUDA device.
//!
//! Its copy engine runs in parallel with compute, and events order the two.

use std::sync::Arc;
use std::time::Duration;

use super::interface::{Backend, CaptureStatus, Event, RelaxedCaptures, Stream, Transfer};
use crate::cuda_driver::Device;
use crate::error::{Result, size};

/// A CUDA device.
pub struct Cuda {
    device: Arc<Device>,
}

impl Cuda {
    /// Opens the device with this CUDA ordinal.
    ///
    /// # Errors
    ///
    /// If no driver or no such device exists.
    pub fn open(ordinal: i32) -> Result<Self> {
        Ok(Self { device: Device::open(ordinal)? })
    }
}

impl Backend for Cuda {
    fn activate(&self) -> Result<bool> {
        self.device.push()
    }

    fn deactivate(&self) {
        self.device.pop();
    }

    fn create_stream(&self) -> Result<Stream> {
        self.device.create_stream().map(Stream)
    }

    fn destroy_stream(&self, stream: Stream) {
        let _ = self.device.synchronize(stream.0);
        self.device.destroy_stream(stream.0);
    }

    fn create_event(&self, timed: bool) -> Result<Event> {
        self.device.create_event(timed).map(Event)
    }

    fn destroy_event(&self, event: Event) {
        self.device.destroy_event(event.0);
    }

    fn record(&self, event: Event, stream: Stream) -> Result<()> {
        self.device.record(event.0, stream.0)
    }

    fn wait(&self, stream: Stream, event: Event) -> Result<bool> {
        self.device.wait(stream.0, event.0)?;
        Ok(true)
    }

    fn block(&self, event: Event, _longest: Duration) -> Result<bool> {
        self.device.wait_on_host(event.0).map(|()| true)
    }

    unsafe fn copy(&self, transfer: &Transfer, stream: Stream) -> Result<()> {
        let &Transfer { from, to, bytes } = transfer;
        // SAFETY: the caller promises that both ranges stay valid until the copy is done.
        unsafe { self.device.copy_to_device(to, from, bytes, stream.0) }
            .map_err(|error| error.while_doing(|| format!("copying {} to device address {to:#x}", size(bytes))))
    }

    unsafe fn copy_to_host(&self, transfer: &Transfer, stream: Stream) -> Result<()> {
        let &Transfer { from, to, bytes } = transfer;
        // SAFETY: the caller promises that both ranges stay valid until the copy is done.
        unsafe { self.device.copy_to_host(to, from, bytes, stream.0) }
            .map_err(|error| error.while_doing(|| format!("copying {} from device address {from:#x}", size(bytes))))
    }

    fn synchronize(&self, stream: Stream) -> Result<()> {
        self.device.synchronize(stream.0)
    }

    fn elapsed_ns(&self, from: Event, to: Event) -> Result<u64> {
        self.device.wait_on_host(to.0)?;
        Ok((f64::from(self.device.elapsed_ms(from.0, to.0)?) * 1e6).max(0.0) as u64)
    }

    fn capturing(&self, stream: Stream) -> Result<CaptureStatus> {
        const NONE: i32 = 0;
        const ACTIVE: i32 = 1;
        Ok(match self.device.capture_of(stream.0)? {
            (NONE, _) => CaptureStatus::None,
            (ACTIVE, id) => CaptureStatus::Active(id),
            _ => CaptureStatus::Broken,
        })
    }

    fn relax_captures(&self) -> RelaxedCaptures<'_> {
        // If the driver refuses, the calls that need relaxed captures report it.
        let before = self.device.exchange_capture_mode(Device::RELAXED);
        RelaxedCaptures::until_dropped(move || {
            if let Ok(before) = before {
                let _ = self.device.exchange_capture_mode(before);
            }
        })
    }
}
