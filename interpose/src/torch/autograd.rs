//! Links backward to forward without Python: finds the forward operation of the gradient being computed.
//!
//! Every autograd node created in forward gets a number (`at::sequence_number::get_and_increment`, counted per thread). When
//! the engine evaluates a node, on its own thread without Python frames, the number identifies the node's forward line and
//! layer.

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

use super::hook::TorchHook;
use crate::attribution;
use crate::recorder::Recorder;
use crate::recorder::session::Session;
use crate::thread_state::{Backward, ThreadState};
use interpose_base::panics;
use interpose_base::symbols::{self, Real};

type GetAndIncrement = unsafe extern "C-unwind" fn() -> u64;
type CurrentThread = unsafe extern "C-unwind" fn() -> u64;
type EvaluateFunction =
    unsafe extern "C-unwind" fn(*mut c_void, *mut c_void, *const u8, *mut c_void, *const c_void) -> *mut c_void;

type Execute = unsafe extern "C-unwind" fn(
    *mut c_void,
    *mut c_void,
    *const c_void,
    *const c_void,
    bool,
    bool,
    bool,
    *const c_void,
) -> *mut c_void;

const EXECUTE: &CStr =
    c"_ZN5torch8autograd6Engine7executeERKSt6vectorINS0_4EdgeESaIS3_EERKS2_IN2at6TensorESaIS9_EEbbbS7_";

static REAL_GET_AND_INCREMENT: Real<GetAndIncrement> =
    Real::in_library(c"libtorch_cpu.so", c"_ZN2at15sequence_number17get_and_incrementEv");
static REAL_EVALUATE: Real<EvaluateFunction> = Real::in_library(
    c"libtorch_cpu.so",
    c"_ZN5torch8autograd6Engine17evaluate_functionERSt10shared_ptrINS0_9GraphTaskEEPNS0_4NodeERNS0_11InputBufferERKS2_INS0_10ReadyQueueEE",
);
static REAL_EXECUTE: Real<Execute> = Real::in_library(c"libtorch_cpu.so", EXECUTE);
/// `at::RecordFunction::currentThreadId()`, which nodes store beside their number.
static TORCH_THREAD: Real<CurrentThread> =
    Real::in_library(c"libtorch_cpu.so", c"_ZN2at14RecordFunction15currentThreadIdEv");

/// Origins of the nodes of the last two million operations, for all threads.
///
/// A node is found by its thread and number. If a newer node has its place, it is forgotten. Pages take memory only once
/// they are used.
static ORIGINS: [Origin; RING_ENTRIES] =
    [const { Origin { node: AtomicU64::new(0), place: AtomicU64::new(0) } }; RING_ENTRIES];

const RING_ENTRIES: usize = 1 << 21;

/// Range in which each node was created, in the same places.
///
/// Not touched as long as no node is created in a range.
static RANGES: [AtomicU32; RING_ENTRIES] = [const { AtomicU32::new(0) }; RING_ENTRIES];
static HAS_RANGES: AtomicBool = AtomicBool::new(false);

/// Range of the thread that last called backward.
static CALLER_RANGE: AtomicU32 = AtomicU32::new(0);

/// Identity, stack and layer of a node.
///
/// Written by the thread that creates the node, read by the engine's thread.
struct Origin {
    /// 0 while the entry is empty or being rewritten.
    node: AtomicU64,
    /// Stack in the upper half, layer in the lower.
    place: AtomicU64,
}

/// Highest number and thread seen, which distinguish a node's fields from other memory.
static HIGHEST: NodeLimits = NodeLimits { number: AtomicU64::new(0), torch_thread: AtomicU64::new(0) };

struct NodeLimits {
    number: AtomicU64,
    torch_thread: AtomicU64,
}

/// Identity of a node.
///
/// Threads and numbers both count from 0; a thread would have to create 2⁴⁰ nodes for identities to repeat. A forked child,
/// whose stacks have other ids, has another recorder.
fn identity(recorder: &Recorder, torch_thread: u64, number: u64) -> u64 {
    recorder.serial() << 60 ^ torch_thread << 40 ^ number
}

/// Index of a node in the ring.
///
/// A multiple of a large odd number separates threads that count in step.
fn entry(torch_thread: u64, number: u64) -> usize {
    (number.wrapping_add(torch_thread.wrapping_mul(0x9e37_79b1)) as usize) % RING_ENTRIES
}

/// Hook for `at::sequence_number::get_and_increment`.
///
/// Called in `Node`'s constructor on the thread that runs the operation, before its result is allocated. No lock is held;
/// the GIL may or may not be held.
#[unsafe(export_name = "_ZN2at15sequence_number17get_and_incrementEv")]
pub extern "C-unwind" fn get_and_increment() -> u64 {
    let Some(real) = REAL_GET_AND_INCREMENT.get() else { symbols::abort_without("get_and_increment") };
    // SAFETY: PyTorch's function.
    let number = unsafe { real() };
    if let Some(mut session) = Recorder::enter_if_recording() {
        panics::catch(|| remember(&mut session, number));
    }
    number
}

fn remember(session: &mut Session, number: u64) {
    let place = attribution::here(session.recorder, session.thread);
    let nodes = &mut session.thread.nodes;
    nodes.last_stack = place.stack;
    if nodes.torch_thread == 0 {
        let Some(current_thread) = TORCH_THREAD.get() else { return };
        // SAFETY: returns the thread's number, assigning one if necessary, as the node under construction will.
        nodes.torch_thread = unsafe { current_thread() } + 1;
        HIGHEST.torch_thread.fetch_max(nodes.torch_thread - 1, Ordering::AcqRel);
    }
    let torch_thread = nodes.torch_thread - 1;
    let entry = entry(torch_thread, number);
    let (origin, range) = (&ORIGINS[entry], session.thread.ranges.now);
    origin.node.store(0, Ordering::Release);
    if range != 0 {
        HAS_RANGES.store(true, Ordering::Relaxed);
    }
    if HAS_RANGES.load(Ordering::Relaxed) {
        RANGES[entry].store(range, Ordering::Release);
    }
    origin.place.store(u64::from(place.stack) << 32 | u64::from(place.layer), Ordering::Release);
    origin.node.store(identity(session.recorder, torch_thread, number), Ordering::Release);
    if HIGHEST.number.load(Ordering::Relaxed) < number {
        HIGHEST.number.fetch_max(number, Ordering::AcqRel);
    }
}

/// Hook for the engine's `execute`: backward begins, on the thread that calls it.
///
/// No lock is held; the GIL is not held. Throws whatever a node throws.
///
/// # Safety
///
/// Must be called as PyTorch calls its function. The result is written to `gradients`.
#[unsafe(export_name = "_ZN5torch8autograd6Engine7executeERKSt6vectorINS0_4EdgeESaIS3_EERKS2_IN2at6TensorESaIS9_EEbbbS7_")]
pub unsafe extern "C-unwind" fn execute(
    gradients: *mut c_void,
    engine: *mut c_void,
    roots: *const c_void,
    inputs: *const c_void,
    keep_graph: bool,
    create_graph: bool,
    accumulate_grad: bool,
    outputs: *const c_void,
) -> *mut c_void {
    let range = Recorder::enter_if_recording().map_or(0, |session| session.thread.ranges.now);
    let _restore = RestoreCaller(CALLER_RANGE.swap(range, Ordering::AcqRel));
    let Some(real) = REAL_EXECUTE.get() else { symbols::abort_without("execute") };
    // SAFETY: PyTorch's function with the arguments it was called with.
    unsafe { real(gradients, engine, roots, inputs, keep_graph, create_graph, accumulate_grad, outputs) }
}

/// Restores the range of the outer call, which counts again after a node itself calls backward.
struct RestoreCaller(u32);

impl Drop for RestoreCaller {
    fn drop(&mut self) {
        CALLER_RANGE.store(self.0, Ordering::Release);
    }
}

/// Hook for the engine's `evaluate_function`, which evaluates one node.
///
/// Called on the engine's thread for the device (or on the thread that called `backward`), without the GIL; throws whatever
/// the node throws.
///
/// # Safety
///
/// Must be called as PyTorch calls its function, with a live node.
#[unsafe(export_name = "_ZN5torch8autograd6Engine17evaluate_functionERSt10shared_ptrINS0_9GraphTaskEEPNS0_4NodeERNS0_11InputBufferERKS2_INS0_10ReadyQueueEE")]
pub unsafe extern "C-unwind" fn evaluate_function(
    engine: *mut c_void,
    task: *mut c_void,
    node: *const u8,
    inputs: *mut c_void,
    queue: *const c_void,
) -> *mut c_void {
    let outer = panics::catch(|| enter_node(node)).flatten();
    // Restores the outer node's context even when the node throws.
    let _restore = outer.map(RestoreBackward);
    let Some(real) = REAL_EVALUATE.get() else { symbols::abort_without("evaluate_function") };
    // SAFETY: PyTorch's function with the arguments it was called with.
    unsafe { real(engine, task, node, inputs, queue) }
}

struct RestoreBackward(Backward);

impl Drop for RestoreBackward {
    fn drop(&mut self) {
        if let Some(session) = Recorder::enter_if_recording() {
            session.thread.backward = self.0;
            session.thread.ranges.now = session.thread.range();
        }
    }
}

fn enter_node(node: *const u8) -> Option<Backward> {
    let session = Recorder::enter_if_recording()?;
    session.recorder.python.in_backward();
    let outer = session.thread.backward;
    let (stack, layer, range) = match LINK.number_of(node, session.recorder) {
        Some(NodeNumber { number, .. }) if number == ACCUMULATE_GRAD => session.thread.nodes.last_linked,
        Some(known) => origin(session.recorder, known).unwrap_or_default(),
        None => (0, 0, 0),
    };
    // AccumulateGrad runs right after the node that computed its gradient, and belongs to it.
    session.thread.nodes.last_linked = (stack, layer, range);
    let caller_range = CALLER_RANGE.load(Ordering::Acquire);
    session.thread.backward = Backward {
        running: true,
        stack,
        layer,
        frame_at_entry: session.recorder.interpreter().map_or(ptr::null(), |python| python.innermost()),
        range: range_of(session.recorder, session.thread, range, caller_range),
        caller_range,
        open_ranges: session.thread.ranges.open,
    };
    session.thread.ranges.now = session.thread.range();
    Some(outer)
}

/// Range in which a node's memory counts.
///
/// It is the range of its forward operation, unless backward was called in a range that did not contain the operation (`with
/// annotate("backward"): loss.backward()`).
fn range_of(recorder: &Recorder, thread: &mut ThreadState, forward: u32, caller: u32) -> u32 {
    if caller == 0 || caller == forward {
        return forward;
    }
    if (thread.ranges.is_inside.0, thread.ranges.is_inside.1) != (forward, caller) {
        thread.ranges.is_inside = (forward, caller, recorder.ranges.is_inside(forward, caller));
    }
    if thread.ranges.is_inside.2 { forward } else { caller }
}

/// Number of nodes that no operation created.
const ACCUMULATE_GRAD: u64 = u64::MAX;

/// The identity of a node's forward operation.
#[derive(Clone, Copy)]
struct NodeNumber {
    number: u64,
    torch_thread: u64,
}

/// Returns stack, layer and range of a node's forward operation.
fn origin(recorder: &Recorder, node: NodeNumber) -> Option<(u32, u32, u32)> {
    let entry = entry(node.torch_thread, node.number);
    let origin = &ORIGINS[entry];
    let place = origin.place.load(Ordering::Acquire);
    let range = if HAS_RANGES.load(Ordering::Relaxed) { RANGES[entry].load(Ordering::Acquire) } else { 0 };
    // Overwritten (the graph has more nodes than the ring), or being overwritten: no link rather than a wrong one.
    let known = origin.node.load(Ordering::Acquire) == identity(recorder, node.torch_thread, node.number);
    known.then_some(((place >> 32) as u32, place as u32, range))
}

/// Offset of a node's number, determined from the first nodes seen: libtorch's headers moved it in 2.14.
struct Link {
    /// Offset in bytes; 0 if not known yet; [`Link::OFF`] when no offset fits.
    offset: AtomicU8,
    misses: AtomicU8,
}

static LINK: Link = Link { offset: AtomicU8::new(0), misses: AtomicU8::new(0) };

impl Link {
    const OFF: u8 = u8::MAX;
    /// After the vtable and a reference count (`intrusive_ptr_target`), or after the vtable and a weak pointer
    /// (`enable_shared_from_this`).
    const CANDIDATES: [u8; 2] = [16, 24];
    /// From the number to the id of the thread that created the node: past the topological number and a flag.
    const THREAD_OFFSET: usize = 24;
    const MAX_MISSES: u8 = 64;

    fn number_of(&self, node: *const u8, recorder: &Recorder) -> Option<NodeNumber> {
        match self.offset.load(Ordering::Relaxed) {
            Self::OFF => None,
            0 => self.find_out(node, recorder),
            offset => Self::read(node, offset),
        }
    }

    /// Reads the number at `offset`, if a thread has issued it.
    fn read(node: *const u8, offset: u8) -> Option<NodeNumber> {
        // SAFETY: nodes are far larger than the offsets read; alignment is that of the words.
        let (number, torch_thread) = unsafe {
            let number = node.add(offset.into()).cast::<u64>();
            (number.read(), number.byte_add(Self::THREAD_OFFSET).read())
        };
        let handed_out = || {
            torch_thread <= HIGHEST.torch_thread.load(Ordering::Acquire)
                && number <= HIGHEST.number.load(Ordering::Acquire)
        };
        (number == ACCUMULATE_GRAD || handed_out()).then_some(NodeNumber { number, torch_thread })
    }

    #[cold]
    fn find_out(&self, node: *const u8, recorder: &Recorder) -> Option<NodeNumber> {
        for offset in Self::CANDIDATES {
            if let Some(found) = Self::read(node, offset) {
                self.offset.store(offset, Ordering::Relaxed);
                return Some(found);
            }
        }
        if self.misses.fetch_add(1, Ordering::Relaxed) == Self::MAX_MISSES {
            self.offset.store(Self::OFF, Ordering::Relaxed);
            recorder.warn("this PyTorch's autograd nodes have another layout: backward is not linked to forward");
        }
        None
    }
}

/// Every hook in this file.
pub fn hooks() -> Vec<TorchHook> {
    vec![
        TorchHook::always(
            c"_ZN2at15sequence_number17get_and_incrementEv",
            c"libtorch_cpu.so",
            get_and_increment as *const c_void,
            "at::sequence_number::get_and_increment",
            "memory allocated by backward has no line and no layer",
        ),
        TorchHook::always(
            c"_ZN5torch8autograd6Engine17evaluate_functionERSt10shared_ptrINS0_9GraphTaskEEPNS0_4NodeERNS0_11InputBufferERKS2_INS0_10ReadyQueueEE",
            c"libtorch_cpu.so",
            evaluate_function as *const c_void,
            "torch::autograd::Engine::evaluate_function",
            "memory allocated by backward is not recognized, and has no line and no layer",
        ),
        TorchHook::always(
            EXECUTE,
            c"libtorch_cpu.so",
            execute as *const c_void,
            "torch::autograd::Engine::execute",
            "ranges around a call of backward are unknown",
        ),
    ]
}
