//! Per-thread state: scratch space, the last stack, small caches, and the thread's position in PyTorch.

use std::cell::Cell;
use std::ptr;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use crate::cuda::graph_captures::ThreadCapture;
use crate::intern::Frame;
use interpose_base::frame_role::FrameRole;
use interpose_base::thread_sanitizer::{handed_over, taken_over};
use interpose_python::walk::{CodeIdentity, MAX_DEPTH, RawFrame};

/// One frame of the last stack (outermost first), with the attribution of the frames up to it.
#[derive(Clone, Copy)]
pub struct Slot {
    pub code: *const u8,
    pub position: usize,
    pub identity: CodeIdentity,
    /// The roles of this frame and the outer ones.
    pub roles: FrameRole,
    pub role: FrameRole,
    pub stack: u32,
    pub layer: u32,
    /// The module this frame calls, if it is a module call.
    pub module: *const u8,
    /// That module's class.
    pub class: *const u8,
    /// The innermost module called so far.
    pub innermost_module: *const u8,
}

impl Slot {
    pub const EMPTY: Self = Self {
        code: ptr::null(),
        position: 0,
        identity: CodeIdentity::EMPTY,
        roles: FrameRole::empty(),
        role: FrameRole::empty(),
        stack: 0,
        layer: 0,
        module: ptr::null(),
        class: ptr::null(),
        innermost_module: ptr::null(),
    };
}

#[derive(Clone, Copy)]
pub struct CachedFrame {
    pub code: *const u8,
    pub position: usize,
    pub frame: Frame,
}

/// A layer by its parent and its module (or the frame of generated code that stands for it).
#[derive(Clone, Copy, Default)]
pub struct CachedLayer {
    pub parent: u32,
    /// 0 while the entry is empty.
    pub layer: u32,
    pub key: usize,
    /// The module's class; 0 for a frame.
    pub class: usize,
}

/// The forward operation whose node the engine is evaluating on this thread.
#[derive(Clone, Copy)]
pub struct Backward {
    pub running: bool,
    pub stack: u32,
    pub layer: u32,
    /// The innermost Python frame when the engine took the node: if it is unchanged, no Python has run since.
    pub frame_at_entry: *const u8,
    /// The range that what the node allocates counts in.
    pub range: u32,
    /// The range of the thread that called backward.
    pub caller_range: u32,
    /// How many ranges were open on this thread when the engine took the node.
    pub open_ranges: u32,
}

impl Default for Backward {
    fn default() -> Self {
        Self {
            running: false,
            stack: 0,
            layer: 0,
            frame_at_entry: ptr::null(),
            range: 0,
            caller_range: 0,
            open_ranges: 0,
        }
    }
}

/// The call of PyTorch that an AOTInductor package makes on this thread.
#[derive(Clone, Copy)]
pub struct PackageCall {
    /// The frame of the package's line; 0 outside of packages.
    pub frame: u32,
    /// Whether the line is known to compute a node.
    pub has_node: bool,
    /// The innermost Python frame: if it is unchanged, no Python has run since.
    pub python: *const u8,
}

impl PackageCall {
    pub const NONE: Self = Self { frame: 0, has_node: false, python: ptr::null() };
}

/// The ranges of a thread, by their ids in the trace; 0: none.
pub struct ThreadRanges {
    /// How many are open.
    pub open: u32,
    /// The innermost of them.
    pub innermost: u32,
    /// The one that events count in.
    pub now: u32,
    /// The one that events count in by the trace so far.
    pub in_trace: Cell<u32>,
    /// The latest result of [`crate::ranges::table::Ranges::is_inside`], with what was asked.
    pub is_inside: (u32, u32, bool),
}

/// A thread's last autograd nodes.
#[derive(Clone, Copy, Default)]
pub struct Nodes {
    /// PyTorch's number for this thread plus one; 0 until it is queried.
    pub torch_thread: u64,
    /// The stack of the last node made.
    pub last_stack: u32,
    /// Stack, layer and range of the last node evaluated on this thread.
    pub last_linked: (u32, u32, u32),
}

pub const FRAME_CACHE_ENTRIES: usize = 1024;
pub const STACK_CACHE_ENTRIES: usize = 2048;
pub const LAYER_CACHE_ENTRIES: usize = 256;

/// A new state is all zeros, so that unused pages take no memory: zero must mean "nothing" in each field. What every event
/// reads is together at the beginning.
#[repr(C)]
pub struct ThreadState {
    /// The serial of the recorder this state belongs to: a forked child has another.
    pub recorder: u64,
    /// The thread's id in the trace.
    pub id: u32,
    /// Inside a function that fetches a library's workspace.
    pub workspace: bool,
    pub capture: ThreadCapture,
    pub ranges: ThreadRanges,
    pub backward: Backward,
    pub nodes: Nodes,
    pub package: PackageCall,
    /// The value of [`crate::recorder::Recorder::module_deaths`] for which the caches are valid.
    pub module_deaths: u64,
    /// The stack and layer below the slots (those of forward, during backward).
    pub slots_base: (u32, u32),
    pub slot_count: usize,
    /// The index of the last walk in `frames`.
    pub walked: usize,
    /// The frames of the last walk and of the one before, which the next walk overwrites; innermost first.
    pub frames: [[RawFrame; MAX_DEPTH]; 2],
    pub slots: [Slot; MAX_DEPTH],
    pub frame_cache: [CachedFrame; FRAME_CACHE_ENTRIES],
    /// Stacks by their key: the stack below and the frame, whose number is above 0.
    pub stack_cache: [(u64, u32); STACK_CACHE_ENTRIES],
    pub layer_cache: [CachedLayer; LAYER_CACHE_ENTRIES],
}

/// The size of a state, in whole pages.
const STATE_BYTES: usize = size_of::<ThreadState>().next_multiple_of(4096);

/// The states of the first threads share one large page. The parts of a state lie pages apart, and looking up where a page is
/// costs more than reading it.
static FIRST_STATES: LazyLock<Option<LargePage>> = LazyLock::new(LargePage::make);

struct LargePage {
    address: usize,
    taken: AtomicUsize,
}

impl LargePage {
    const BYTES: usize = 2 << 20;

    fn make() -> Option<Self> {
        let around = map(2 * Self::BYTES)?.addr();
        let address = around.next_multiple_of(Self::BYTES);
        // SAFETY: parts of the mapping that was just made, and that nobody uses. Advice may be refused.
        unsafe {
            let outside = [(around, address - around), (address + Self::BYTES, around + Self::BYTES - address)];
            for (start, bytes) in outside.into_iter().filter(|(_, bytes)| *bytes > 0) {
                libc::munmap(ptr::with_exposed_provenance_mut(start), bytes);
            }
            libc::madvise(ptr::with_exposed_provenance_mut(address), Self::BYTES, libc::MADV_HUGEPAGE);
        }
        handed_over(&FIRST_STATES);
        Some(Self { address, taken: AtomicUsize::new(0) })
    }

    fn take(&self) -> Option<*mut ThreadState> {
        taken_over(&FIRST_STATES);
        let offset = self.taken.fetch_add(STATE_BYTES, Ordering::Relaxed);
        let fits = offset + STATE_BYTES <= Self::BYTES;
        fits.then(|| ptr::with_exposed_provenance_mut(self.address + offset))
    }

    fn has(&self, state: *mut ThreadState) -> bool {
        (self.address..self.address + Self::BYTES).contains(&state.addr())
    }
}

/// Fresh memory of zeros. None if the system is out of it.
fn map(bytes: usize) -> Option<*mut u8> {
    let (protection, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
    // SAFETY: a fresh mapping where the kernel wants it.
    let memory = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
    (memory != libc::MAP_FAILED).then(|| {
        memory.expose_provenance();
        memory.cast()
    })
}

impl ThreadState {
    /// A state, in the first ones' page or in its own mapping, of which only the pages that are written to take memory:
    /// few for most threads. None if the system is out of memory.
    fn make() -> Option<*mut Self> {
        if let Some(state) = FIRST_STATES.as_ref().and_then(LargePage::take) {
            return Some(state);
        }
        let state = map(STATE_BYTES)?;
        // SAFETY: the mapping just made. Advice may be refused: with pages of 2 MiB nothing would be saved.
        unsafe { libc::madvise(state.cast(), STATE_BYTES, libc::MADV_NOHUGEPAGE) };
        Some(state.cast()) // Zero means that nothing is known, in every field.
    }

    fn is_in_large_page(state: *mut Self) -> bool {
        FIRST_STATES.as_ref().is_some_and(|page| page.has(state))
    }

    /// Resets the state to zeros, and gives its own pages back to the system.
    ///
    /// # Safety
    ///
    /// `state` was made by [`make`](Self::make), and only the caller has it.
    unsafe fn forget(state: *mut Self) {
        // SAFETY: whole pages of the state's own mapping; a private anonymous mapping holds zeros afterwards.
        unsafe {
            if Self::is_in_large_page(state) || libc::madvise(state.cast(), STATE_BYTES, libc::MADV_DONTNEED) != 0 {
                ptr::write_bytes(state, 0, 1);
            }
        }
    }

    /// # Safety
    ///
    /// As for [`forget`](Self::forget), and it is none of the first states; `state` is freed afterwards.
    unsafe fn unmake(state: *mut Self) {
        // SAFETY: the whole mapping that `make` made, which only the caller has.
        unsafe { libc::munmap(state.cast(), STATE_BYTES) };
    }

    /// The range that events count in: during backward that of the node, unless Python code of the node opened its own.
    pub fn range(&self) -> u32 {
        let is_nodes = self.backward.running && self.ranges.open == self.backward.open_ranges;
        if is_nodes { self.backward.range } else { self.ranges.innermost }
    }

    /// Drops the cache entries that could name a dead module.
    pub fn forget_modules(&mut self) {
        self.slot_count = 0;
        self.slots_base = (0, 0);
        self.layer_cache.fill(CachedLayer::default());
    }
}

thread_local! {
    static STATE: Cell<*mut ThreadState> = const { Cell::new(ptr::null_mut()) };
}

/// The calling thread's state, made or reset for `recorder` when needed. Null if there is no memory for one.
#[inline]
pub fn state(recorder: u64) -> *mut ThreadState {
    let state = STATE.with(Cell::get);
    // SAFETY: a non-null state belongs to this thread until it ends, and is never freed.
    if !state.is_null() && unsafe { (*state).recorder } == recorder { state } else { prepare(recorder) }
}

#[cold]
fn prepare(recorder: u64) -> *mut ThreadState {
    let mut state = STATE.with(Cell::get);
    if state.is_null() {
        let Some(made) = SPARE.take().or_else(ThreadState::make) else { return ptr::null_mut() };
        state = made;
        STATE.with(|cell| cell.set(state));
        SPARE.hand_back_at_thread_exit(state);
    } else {
        // A forked child: the parent's ids are not in the child's trace.
        // SAFETY: the state is this thread's alone.
        unsafe { ThreadState::forget(state) };
    }
    // SAFETY: not null, and this thread's alone.
    unsafe { (*state).recorder = recorder };
    state
}

/// Reset states of ended threads, kept for new threads.
struct SpareStates {
    /// A short list is enough: programs that start thousands of threads do not run them all at once.
    spare: [AtomicPtr<ThreadState>; 64],
    /// The pthread key plus one whose destructor returns a state; 0 before it is made.
    key: AtomicU64,
}

static SPARE: SpareStates =
    SpareStates { spare: [const { AtomicPtr::new(ptr::null_mut()) }; 64], key: AtomicU64::new(0) };

impl SpareStates {
    fn take(&self) -> Option<*mut ThreadState> {
        let mut spare = self.spare.iter().map(|slot| slot.swap(ptr::null_mut(), Ordering::AcqRel));
        spare.find(|state| !state.is_null()).inspect(|state| taken_over(*state))
    }

    fn hand_back_at_thread_exit(&self, state: *mut ThreadState) {
        let mut key = self.key.load(Ordering::Acquire);
        if key == 0 {
            let mut fresh = 0;
            // SAFETY: `fresh` receives the key; the destructor has the required signature.
            if unsafe { libc::pthread_key_create(&mut fresh, Some(thread_ends)) } != 0 {
                return; // The state leaks when its thread ends; nothing else is lost.
            }
            key = match self.key.compare_exchange(0, u64::from(fresh) + 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => u64::from(fresh) + 1,
                Err(theirs) => theirs, // Another thread was first; this key stays unused.
            };
        }
        // SAFETY: the key exists; the value is handed to `thread_ends` when this thread exits.
        unsafe { libc::pthread_setspecific((key - 1) as libc::pthread_key_t, state.cast()) };
    }
}

/// Runs on the ending thread. Other keys' destructors may still allocate CUDA memory later: they find no state and get
/// a new one.
///
/// # Safety
///
/// `state` was made in [`prepare`] for this thread, which ends.
unsafe extern "C" fn thread_ends(state: *mut libc::c_void) {
    STATE.with(|cell| cell.set(ptr::null_mut()));
    // SAFETY: made in `prepare` for this thread, which ends.
    unsafe { ThreadState::forget(state.cast()) };
    handed_over(state);
    for slot in &SPARE.spare {
        if slot.compare_exchange(ptr::null_mut(), state.cast(), Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            return;
        }
    }
    if !ThreadState::is_in_large_page(state.cast()) {
        // SAFETY: made in `prepare`, in its own mapping; its thread ends and no slot has taken it.
        unsafe { ThreadState::unmake(state.cast()) };
    }
}
