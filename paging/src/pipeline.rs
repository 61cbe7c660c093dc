//! The pipeline: copies weights to the device in the order of the forward pass, ahead of the compute.
//!
//! The forward is a circular schedule of points. Each point lists the units that must be on the device until the next point.
//! A unit either stays on the device, or has one placement in the ring, so its address never changes. Loading a unit evicts
//! the units that overlap it.
//!
//! A thread that reaches a point releases the units it no longer needs, and acquires the units it does need. It then queues
//! copies for later points, including those of the next forward. Events order the streams, and the host does not wait.

mod capture;
mod checked_configuration;
mod configuration;
mod core;
mod counters;
mod cursor;
mod prefetch;
mod ring;
mod session;
mod timing;
mod unit_set;
mod unlocked;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

pub use configuration::{Configuration, Unit, WeightRange};
pub use counters::Counters;
pub use session::{Change, Session};
pub use unlocked::{Unlocked, no_lock_held};

use self::core::{PipelineCore, PipelineState};
use crate::arena::Arena;
use crate::backend::{ActiveDevice, Backend, Cuda, Host, Stream};
use crate::error::{Error, Result};
use crate::range::ByteRange;
use checked_configuration::CheckedConfiguration;

/// Copies weights to a device.
///
/// See the module.
pub struct Pipeline {
    core: Arc<PipelineCore>,
}

impl Pipeline {
    /// Creates a pipeline to a CUDA device or, with `None`, on the host.
    ///
    /// The host's copy speed can be set.
    ///
    /// # Errors
    ///
    /// If the device does not exist, or both a device and a speed are given.
    pub fn new(arena: Arc<Arena>, device: Option<i32>, bytes_per_second: Option<f64>) -> Result<Self> {
        match (device, bytes_per_second) {
            (Some(_), Some(_)) => Err(Error::Invalid("only copies on the host can be given a pace".into())),
            (Some(device), None) => Self::with(arena, Arc::new(Cuda::open(device)?), true),
            (None, pace) => Self::with(arena, Arc::new(Host::new(pace)?), false),
        }
    }

    /// Creates a pipeline with another backend.
    ///
    /// # Errors
    ///
    /// If the backend cannot create a stream.
    pub fn with_backend(arena: Arc<Arena>, backend: Arc<dyn Backend>) -> Result<Self> {
        Self::with(arena, backend, false)
    }

    fn with(arena: Arc<Arena>, backend: Arc<dyn Backend>, copies_block: bool) -> Result<Self> {
        let _active = ActiveDevice::on(&*backend)?;
        Ok(Self { core: Arc::new(PipelineCore::new(arena, Arc::clone(&backend), copies_block)?) })
    }

    /// Reconfigures the pipeline.
    ///
    /// Waits for earlier copies and for `stream`, which may be using the memory, then copies the units that stay. No forward
    /// may be in progress.
    ///
    /// # Errors
    ///
    /// If the configuration contradicts itself or the arena, a forward is in progress, or a copy fails.
    ///
    /// # Safety
    ///
    /// The device addresses are valid for their lengths and agree with the placements. Nothing else uses them until the next
    /// configuration or the end of the pipeline.
    pub unsafe fn configure(&self, configuration: Configuration, stream: Stream) -> Result<()> {
        let PipelineCore { backend, arena, .. } = &*self.core;
        let configuration = CheckedConfiguration::new(arena, configuration)?;
        self.core.copies_block.fetch_and(!arena.is_pinned(), Ordering::Relaxed);
        let _active = ActiveDevice::on(&**backend)?;
        let mut state = self.core.state.lock();
        let under_way = (0..state.configuration.units() as Unit).any(|unit| state.ring.is_held(unit));
        if under_way || !state.waiting.is_empty() {
            return Err(Error::Failed("a forward is under way on another thread: let it end first".into()));
        }
        state.generation += 1;
        state.fresh = true;
        state.configuration = Arc::default();
        backend.synchronize(state.ring.stream)?;
        state.ring.clear(configuration.units());
        state.fork(&**backend, stream)?;
        for unit in (0..configuration.units() as Unit).filter(|&unit| configuration.placement(unit).is_none()) {
            state.ring.load(&**backend, &configuration, unit)?;
        }
        backend.synchronize(state.ring.stream)?;
        state.ring.all_done();
        state.configuration = Arc::new(configuration);
        Ok(())
    }

    /// Creates a session for one thread.
    pub fn session(&self) -> Session {
        let mut state = self.core.state.lock();
        state.sessions += 1;
        Session::new(Arc::clone(&self.core), state.sessions)
    }

    /// Marks the bytes of a unit as changed in the arena.
    ///
    /// A unit on the device is copied again, after the work that reads it now. Later work on `stream` sees the new bytes.
    ///
    /// # Errors
    ///
    /// If the unit does not exist, or a copy cannot be queued.
    pub fn reload(&self, unit: Unit, stream: Stream) -> Result<()> {
        let backend = &*self.core.backend;
        let _active = ActiveDevice::on(backend)?;
        let mut state = self.core.state.lock();
        let PipelineState { configuration, ring, counters, .. } = &mut *state;
        if unit as usize >= configuration.units() {
            return Err(Error::Invalid(format!("there is no unit {unit}, only {}", configuration.units())));
        }
        if !ring.is_loaded(unit) && !ring.is_held(unit) {
            return Ok(());
        }
        counters.reloads += 1;
        let pending = ring.reload(backend, configuration, unit, stream)?;
        drop(state);
        pending.map_or(Ok(()), |event| {
            while !backend.block(event, Duration::MAX)? {}
            Ok(())
        })
    }

    /// Marks all units in the ring as stale, so that they are copied again when they are needed.
    pub fn invalidate(&self) {
        self.core.state.lock().ring.invalidate();
    }

    /// Measures the bytes per second of copies from the arena to `address`: the median of a few copies.
    ///
    /// Overwrites the bytes there.
    ///
    /// # Errors
    ///
    /// If `bytes` is 0, or a copy fails.
    ///
    /// # Safety
    ///
    /// The address is valid for `bytes`, and only `stream` uses them.
    pub unsafe fn measure_bandwidth(&self, address: u64, bytes: u64, stream: Stream) -> Result<f64> {
        const MAX_DURATION: Duration = Duration::from_millis(50);
        const MAX_COPIES: usize = 9;
        let PipelineCore { backend, arena, .. } = &*self.core;
        let bytes = bytes.min(arena.bytes());
        if bytes == 0 {
            return Err(Error::Invalid("a bandwidth cannot be measured with no bytes".into()));
        }
        let transfers = checked_configuration::transfers(
            arena,
            &[WeightRange { arena: ByteRange::new(0, bytes), device_address: address }],
        )?;
        let _active = ActiveDevice::on(&**backend)?;
        let mut state = self.core.state.lock();
        state.ring.invalidate();
        state.fork(&**backend, stream)?;
        let copy_stream = state.ring.stream;
        let (begin, end) = (backend.create_event(true)?, backend.create_event(true)?);
        let measure = || {
            backend.record(begin, copy_stream)?;
            for transfer in &transfers {
                // SAFETY: the source is inside the arena, the caller promises the target, and the copy is done when this
                // returns.
                unsafe { backend.copy(transfer, copy_stream) }?;
            }
            backend.record(end, copy_stream)?;
            backend.synchronize(copy_stream)?;
            backend.elapsed_ns(begin, end)
        };
        let begun = Instant::now();
        let mut measured = Vec::new();
        let mut outcome = Ok(());
        while outcome.is_ok() && measured.len() < MAX_COPIES && (measured.is_empty() || begun.elapsed() < MAX_DURATION)
        {
            outcome = measure().map(|ns| measured.push(ns));
        }
        backend.destroy_event(begin);
        backend.destroy_event(end);
        outcome?;
        if measured.len() > 1 {
            measured.remove(0); // The first one warms up.
        }
        measured.sort_unstable();
        Ok(bytes as f64 / (measured[measured.len() / 2].max(1) as f64 * 1e-9))
    }

    /// Turns timing on or off for forwards that begin from now on, and discards earlier timings.
    pub fn set_timed(&self, on: bool) {
        let backend = &*self.core.backend;
        let _active = ActiveDevice::on(backend);
        let mut state = self.core.state.lock();
        state.timed = on;
        if on && let Some(mut before) = state.measured.take() {
            before.destroy(backend);
        }
    }

    /// Returns true if a forward was captured into a graph.
    ///
    /// The graph contains the addresses of the present configuration.
    pub fn was_captured(&self) -> bool {
        self.core.state.lock().bounded
    }

    /// Nanoseconds of compute of each point in the last timed forward; 0 for points it did not reach.
    ///
    /// Waits for the end of that forward.
    ///
    /// # Errors
    ///
    /// If the device has failed.
    pub fn timings(&self) -> Result<Vec<u64>> {
        let backend = &*self.core.backend;
        let _active = ActiveDevice::on(backend)?;
        let state = self.core.state.lock();
        let points = state.configuration.points();
        state.measured.as_ref().map_or(Ok(vec![0; points]), |timing| timing.read(backend, points))
    }

    /// Counts since the pipeline was created.
    pub fn counters(&self) -> Counters {
        let mut counters = self.core.state.lock().counters;
        counters.waits += self.core.waits.load(Ordering::Relaxed);
        counters.waited += Duration::from_nanos(self.core.waited_ns.load(Ordering::Relaxed));
        counters
    }

    /// Number of threads that now wait for units held by other threads.
    pub fn waiting(&self) -> usize {
        self.core.state.lock().waiting.len()
    }

    /// Waits for all copies.
    ///
    /// # Errors
    ///
    /// If a copy has failed.
    pub fn synchronize(&self) -> Result<()> {
        let backend = &*self.core.backend;
        let _active = ActiveDevice::on(backend)?;
        let stream = self.core.state.lock().ring.stream;
        backend.synchronize(stream)
    }
}

impl Drop for Pipeline {
    /// Ensures that no copy writes to the device's memory after this, even if sessions remain.
    fn drop(&mut self) {
        self.core.close();
    }
}
