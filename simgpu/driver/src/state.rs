//! The driver's state, behind one lock.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use simgpu_cards::Cards;

use crate::code::{Answer, Code};
use crate::objects::{
    Array, Capture, Context, Event, Executable, Function, Graph, GraphMemory, Library, Node, Pool, PrimaryContext,
    Stream, Virtual,
};
use crate::space::Space;

/// The state from `cuInit` to the end of the process.
pub struct DriverState {
    pub cards: Cards,
    pub primaries: Vec<PrimaryContext>,
    pub contexts: HashMap<usize, Context>,
    pub space: Space,
    pub virtual_memory: Virtual,
    pub pools: HashMap<usize, Pool>,
    pub streams: HashMap<usize, Stream>,
    pub events: HashMap<usize, Event>,
    pub captures: HashMap<usize, Capture>,
    pub graphs: HashMap<usize, Graph>,
    pub nodes: HashMap<usize, Node>,
    pub executables: HashMap<usize, Executable>,
    pub graph_memory: Vec<GraphMemory>,
    pub arrays: HashMap<usize, Array>,
    pub mipmaps: HashMap<usize, Vec<usize>>,
    pub libraries: HashMap<usize, Library>,
    /// Function and kernel handles, with their library and name.
    pub functions: HashMap<usize, Function>,
    /// Enabled peer access: (from context, to context).
    pub peers: std::collections::HashSet<(usize, usize)>,
    next: usize,
}

static STATE: Mutex<Option<Box<DriverState>>> = Mutex::new(None);

/// Set in a child forked after `cuInit`: as with the real driver, CUDA does not work there.
static FORKED: AtomicBool = AtomicBool::new(false);

/// The locked state.
pub struct LockedState(MutexGuard<'static, Option<Box<DriverState>>>);

impl Deref for LockedState {
    type Target = DriverState;

    fn deref(&self) -> &DriverState {
        self.0.as_ref().expect("only made when initialised")
    }
}

impl DerefMut for LockedState {
    fn deref_mut(&mut self) -> &mut DriverState {
        self.0.as_mut().expect("only made when initialised")
    }
}

/// Locks the state; fails with `CUDA_ERROR_NOT_INITIALIZED` before `cuInit` and in a forked child.
pub fn state() -> Result<LockedState, Code> {
    if FORKED.load(Ordering::Relaxed) {
        return Err(Code::NOT_INITIALIZED);
    }
    let guard = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    if guard.is_none() {
        return Err(Code::NOT_INITIALIZED);
    }
    Ok(LockedState(guard))
}

/// Implements `cuInit`.
pub fn initialise() -> Answer {
    extern "C" fn forked() {
        FORKED.store(true, Ordering::Relaxed);
    }
    if FORKED.load(Ordering::Relaxed) {
        return Err(Code::NOT_INITIALIZED);
    }
    let mut guard = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    if guard.is_some() {
        return Ok(());
    }
    let cards = Cards::open_visible();
    let devices = cards.devices();
    if devices == 0 {
        return Err(Code::NO_DEVICE);
    }
    // SAFETY: `forked` only stores to an atomic.
    unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    let mut state = Box::new(DriverState {
        cards,
        primaries: (0..devices).map(|_| PrimaryContext::default()).collect(),
        contexts: HashMap::new(),
        space: Space::default(),
        virtual_memory: Virtual::default(),
        pools: HashMap::new(),
        streams: HashMap::new(),
        events: HashMap::new(),
        captures: HashMap::new(),
        graphs: HashMap::new(),
        nodes: HashMap::new(),
        executables: HashMap::new(),
        graph_memory: (0..devices).map(|_| GraphMemory::default()).collect(),
        arrays: HashMap::new(),
        mipmaps: HashMap::new(),
        libraries: HashMap::new(),
        functions: HashMap::new(),
        peers: std::collections::HashSet::new(),
        next: 0x0051_4700_0000_0000 >> 8,
    });
    for device in 0..devices {
        let handle = state.new_handle();
        state.pools.insert(handle, Pool::new(device, true, 0, 0));
    }
    *guard = Some(state);
    Ok(())
}

impl DriverState {
    /// Returns an unused handle: distinct, never null, never one of the special stream handles.
    pub fn new_handle(&mut self) -> usize {
        self.next += 64;
        self.next
    }

    /// Checks a device ordinal.
    pub fn device(&self, ordinal: i32) -> Result<usize, Code> {
        usize::try_from(ordinal).ok().filter(|device| *device < self.cards.devices()).ok_or(Code::INVALID_DEVICE)
    }
}
