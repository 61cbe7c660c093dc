//! What all threads of a pipeline share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use parking_lot::{Condvar, Mutex};

use super::layout::Layout;
use super::ring::{Counters, Ring};
use super::timing::Timing;
use crate::arena::Arena;
use crate::backend::{Active, Backend, Stream};
use crate::error::Result;

pub struct Shared {
    pub backend: Arc<dyn Backend>,
    pub arena: Arc<Arena>,
    pub state: Mutex<State>,
    /// Somebody let go of something.
    pub released: Condvar,
    /// Copies keep the thread that asks for them.
    pub stalls: AtomicBool,
    pub waits: AtomicU64,
    pub waited_ns: AtomicU64,
}

pub struct State {
    pub layout: Arc<Layout>,
    /// Goes up with each configuration.
    pub generation: u64,
    pub ring: Ring,
    pub counters: Counters,
    /// No forward has ended since the configuration.
    pub fresh: bool,
    /// Graphs that nobody announces fill the ring too: a forward neither finds anything in it, nor leaves copies behind that
    /// the caller's stream does not wait for.
    pub bounded: bool,
    /// Threads that wait for others to let go, in the order in which they came.
    pub waiting: Vec<u64>,
    pub tickets: u64,
    pub sessions: u64,
    pub timed: bool,
    /// The last timed forward.
    pub measured: Option<Timing>,
}

impl Shared {
    /// With a stream for copies.
    pub fn new(arena: Arc<Arena>, backend: Arc<dyn Backend>, stalls: bool) -> Result<Self> {
        let state = State {
            layout: Arc::default(),
            generation: 0,
            ring: Ring::new(backend.create_stream()?, 0),
            counters: Counters::default(),
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
            stalls: AtomicBool::new(stalls),
            waits: AtomicU64::new(0),
            waited_ns: AtomicU64::new(0),
        })
    }

    pub fn notify(&self, state: &State) {
        if !state.waiting.is_empty() {
            self.released.notify_all();
        }
    }

    /// Ends all copies. Forwards fail from here on.
    pub fn close(&self) {
        let _active = Active::on(&*self.backend);
        let mut state = self.state.lock();
        state.generation += 1;
        state.layout = Arc::default();
        self.backend.destroy_stream(state.ring.stream);
        state.ring.clear(0);
        state.waiting.clear();
        self.released.notify_all();
    }
}

impl State {
    /// Copies wait for what is queued on `stream`.
    pub fn fork(&mut self, backend: &dyn Backend, stream: Stream) -> Result<()> {
        let copies = self.ring.stream;
        self.ring.order(backend, stream, copies)
    }

    /// `stream` waits for all copies.
    pub fn join(&mut self, backend: &dyn Backend, stream: Stream) -> Result<()> {
        let copies = self.ring.stream;
        self.ring.order(backend, copies, stream)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _active = Active::on(&*self.backend);
        let state = self.state.get_mut();
        if let Some(timing) = &mut state.measured {
            timing.destroy(&*self.backend);
        }
        state.ring.events.destroy(&*self.backend);
    }
}
