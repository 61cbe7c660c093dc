//! The part of a pipeline that all its threads share: backend, arena, and the state behind its lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use parking_lot::{Condvar, Mutex};

use super::checked_configuration::CheckedConfiguration;
use super::counters::Counters;
use super::ring::{Holder, Ring};
use super::timing::Timing;
use crate::arena::Arena;
use crate::backend::{ActiveDevice, Backend, Stream};
use crate::error::Result;

/// State shared by all threads of a pipeline.
pub struct PipelineCore {
    pub backend: Arc<dyn Backend>,
    pub arena: Arc<Arena>,
    pub state: Mutex<PipelineState>,
    /// Signalled when units are released.
    pub released: Condvar,
    /// True if copies block the thread that queues them.
    pub copies_block: AtomicBool,
    pub waits: AtomicU64,
    pub waited_ns: AtomicU64,
}

/// State that changes while forwards run.
pub struct PipelineState {
    pub configuration: Arc<CheckedConfiguration>,
    /// Incremented with each configuration.
    pub generation: u64,
    pub ring: Ring,
    pub counters: Counters,
    /// Session that prefetched last.
    pub prefetcher: Holder,
    /// True if no forward has ended since the configuration.
    pub fresh: bool,
    /// True once a forward was captured.
    ///
    /// Replayed graphs fill the ring without notice. A forward therefore assumes an empty ring at its start, and makes the
    /// caller's stream wait for its copies at its end.
    pub bounded: bool,
    /// Threads that wait for units held by other threads, in order of arrival.
    pub waiting: Vec<u64>,
    pub tickets: u64,
    pub sessions: u64,
    pub timed: bool,
    /// The last timed forward.
    pub measured: Option<Timing>,
}

impl PipelineCore {
    /// Creates an empty state with a stream for copies.
    pub fn new(arena: Arc<Arena>, backend: Arc<dyn Backend>, copies_block: bool) -> Result<Self> {
        let state = PipelineState {
            configuration: Arc::default(),
            generation: 0,
            ring: Ring::new(backend.create_stream()?, 0),
            counters: Counters::default(),
            prefetcher: 0,
            fresh: true,
            bounded: false,
            waiting: Vec::new(),
            tickets: 0,
            sessions: 0,
            timed: false,
            measured: None,
        };
        Ok(Self {
            backend,
            arena,
            state: Mutex::new(state),
            released: Condvar::new(),
            copies_block: AtomicBool::new(copies_block),
            waits: AtomicU64::new(0),
            waited_ns: AtomicU64::new(0),
        })
    }

    pub fn notify(&self, state: &PipelineState) {
        if !state.waiting.is_empty() {
            self.released.notify_all();
        }
    }

    /// Stops all copies.
    ///
    /// Forwards fail from now on.
    pub fn close(&self) {
        let _active = ActiveDevice::on(&*self.backend);
        let mut state = self.state.lock();
        state.generation += 1;
        state.configuration = Arc::default();
        self.backend.destroy_stream(state.ring.stream);
        state.ring.clear(0);
        state.waiting.clear();
        self.released.notify_all();
    }
}

impl PipelineState {
    /// Makes copies wait for the work queued on `stream`.
    pub fn fork(&mut self, backend: &dyn Backend, stream: Stream) -> Result<()> {
        let copy_stream = self.ring.stream;
        self.ring.order(backend, stream, copy_stream)
    }

    /// Makes `stream` wait for all copies.
    pub fn join(&mut self, backend: &dyn Backend, stream: Stream) -> Result<()> {
        let copy_stream = self.ring.stream;
        self.ring.order(backend, copy_stream, stream)
    }
}

impl Drop for PipelineCore {
    fn drop(&mut self) {
        let _active = ActiveDevice::on(&*self.backend);
        let state = self.state.get_mut();
        if let Some(timing) = &mut state.measured {
            timing.destroy(&*self.backend);
        }
        state.ring.events.destroy(&*self.backend);
    }
}
