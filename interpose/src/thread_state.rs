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

/// A frame of the last stack (outermost first), with the attribution of the frames up to it.
#[derive(Clone, Copy)]
pub struct Slot {
    pub code: *const u8,
    pub position: usize,
    pub identity: CodeIdentity,
    /// Roles of this frame and the outer ones.
    pub roles: FrameRole,
    pub role: FrameRole,
    pub stack: u32,
    pub layer: u32,
    /// Module that this frame calls, if it is a module call.
    pub module: *const u8,
    /// Class of that module.
    pub class: *const u8,
    /// Innermost module called so far.
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

/// A layer by its parent and its module (or the frame of generated code that represents it).
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
    /// Innermost Python frame when the engine took the node: if it is unchanged, no Python has run since.
    pub frame_at_entry: *const u8,
    /// Range in which the node's allocations count.
    pub range: u32,
    /// Range of the thread that called backward.
    pub caller_range: u32,
    /// Number of ranges open on this thread when the engine took the node.
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

/// PyTorch call that an AOTInductor package makes on this thread.
#[derive(Clone, Copy)]
pub struct PackageCall {
    /// The frame of the package's line; 0 outside of packages.
    pub frame: u32,
    /// True if the line is known to compute a node.
    pub has_node: bool,
    /// Innermost Python frame: if it is unchanged, no Python has run since.
    pub python: *const u8,
}

impl PackageCall {
    pub const NONE: Self = Self { frame: 0, has_node: false, python: ptr::null() };
}

/// Ranges of a thread, by their ids in the trace; 0: none.
pub struct ThreadRanges {
    /// Number of open ranges.
    pub open: u32,
    /// Innermost open range.
    pub innermost: u32,
    /// Range in which events count.
    pub now: u32,
    /// Range in which events count according to the trace so far.
    pub in_trace: Cell<u32>,
    /// Latest result of [`crate::ranges::table::Ranges::is_inside`], with its arguments.
    pub is_inside: (u32, u32, bool),
}

/// A thread's last autograd nodes.
#[derive(Clone, Copy, Default)]
pub struct Nodes {
    /// PyTorch's number for this thread plus one; 0 until it is queried.
    pub torch_thread: u64,
    /// Stack of the last node created.
    pub last_stack: u32,
    /// Stack, layer and range of the last node evaluated on this thread.
    pub last_linked: (u32, u32, u32),
}

pub const FRAME_CACHE_ENTRIES: usize = 1024;
pub const STACK_CACHE_ENTRIES: usize = 2048;
pub const LAYER_CACHE_ENTRIES: usize = 256;

/// State of a thread.
///
/// A new state is all zeros, so that unused pages take no memory: zero must mean "none" in each field. Fields that every
/// event reads are together at the beginning.
#[repr(C)]
pub struct ThreadState {
    /// Serial of the recorder to which this state belongs: a forked child has another recorder.
    pub recorder: u64,
    /// Id of the thread in the trace.
    pub id: u32,
    /// True inside a function that fetches a library's workspace.
    pub workspace: bool,
    pub capture: ThreadCapture,
    pub ranges: ThreadRanges,
    pub backward: Backward,
    pub nodes: Nodes,
    pub package: PackageCall,
    /// The value of [`crate::recorder::Recorder::module_deaths`] for which the caches are valid.
    pub module_deaths: u64,
    /// Stack and layer below the slots (those of forward, during backward).
    pub slots_base: (u32, u32),
    pub slot_count: usize,
    /// Index of the last walk in `frames`.
    pub walked: usize,
    /// Frames of the last walk and of the one before, which the next walk overwrites; innermost first.
    pub frames: [[RawFrame; MAX_DEPTH]; 2],
    pub slots: [Slot; MAX_DEPTH],
    pub frame_cache: [CachedFrame; FRAME_CACHE_ENTRIES],
    /// Stacks by their key: the stack below and the frame, whose number is above 0.
    pub stack_cache: [(u64, u32); STACK_CACHE_ENTRIES],
    pub layer_cache: [CachedLayer; LAYER_CACHE_ENTRIES],
}

/// Size of a state, in whole pages.
const STATE_BYTES: usize = size_of::<ThreadState>().next_multiple_of(4096);

/// Large page shared by the states of the first threads.
///
/// The parts of a state lie pages apart, and looking up the address of a page costs more than reading it.
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
        // SAFETY: parts of the mapping that was just created, and that no other code uses. Advice may be refused.
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

/// Maps fresh memory of zeros.
///
/// Returns `None` if the system is out of memory.
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
    /// Creates a state, in the large page of the first states or in a separate mapping.
    ///
    /// Only the pages that are written to take memory: few for most threads. Returns `None` if the system is out of memory.
    fn make() -> Option<*mut Self> {
        if let Some(state) = FIRST_STATES.as_ref().and_then(LargePage::take) {
            return Some(state);
        }
        let state = map(STATE_BYTES)?;
        // SAFETY: the mapping just created. Advice may be refused: pages of 2 MiB would save no memory.
        unsafe { libc::madvise(state.cast(), STATE_BYTES, libc::MADV_NOHUGEPAGE) };
        Some(state.cast()) // Zero means "unknown" in every field.
    }

    fn is_in_large_page(state: *mut Self) -> bool {
        FIRST_STATES.as_ref().is_some_and(|page| page.has(state))
    }

    /// Resets the state to zeros, and returns its private pages to the system.
    ///
    /// # Safety
    ///
    /// `state` was created by [`make`](Self::make), and only the caller has it.
    unsafe fn forget(state: *mut Self) {
        // SAFETY: whole pages of the state's mapping; a private anonymous mapping holds zeros afterwards.
        unsafe {
            if Self::is_in_large_page(state) || libc::madvise(state.cast(), STATE_BYTES, libc::MADV_DONTNEED) != 0 {
                ptr::write_bytes(state, 0, 1);
            }
        }
    }

    /// # Safety
    ///
    /// As for [`forget`](Self::forget), and it is not one of the first states; `state` is freed afterwards.
    unsafe fn unmake(state: *mut Self) {
        // SAFETY: the whole mapping that `make` created, which only the caller has.
        unsafe { libc::munmap(state.cast(), STATE_BYTES) };
    }

    /// Range in which events count: during backward that of the node, unless Python code of the node opened another.
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

/// Returns the calling thread's state, created or reset for `recorder` when needed.
///
/// Returns null if the system is out of memory.
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
    /// The pthread key plus one whose destructor returns a state; 0 before it is created.
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

/// Runs on the ending thread.
///
/// Destructors of other keys may still allocate CUDA memory later: they find no state and get a new one.
///
/// # Safety
///
/// `state` was created in [`prepare`] for this thread, which ends.
unsafe extern "C" fn thread_ends(state: *mut libc::c_void) {
    STATE.with(|cell| cell.set(ptr::null_mut()));
    // SAFETY: created in `prepare` for this thread, which ends.
    unsafe { ThreadState::forget(state.cast()) };
    handed_over(state);
    for slot in &SPARE.spare {
        if slot.compare_exchange(ptr::null_mut(), state.cast(), Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            return;
        }
    }
    if !ThreadState::is_in_large_page(state.cast()) {
        // SAFETY: created in `prepare`, in a separate mapping; its thread ends and no slot has taken it.
        unsafe { ThreadState::unmake(state.cast()) };
    }
}
