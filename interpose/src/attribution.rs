//! Attributes each event to the Python stack, layer and phase of the calling thread's current operation.

pub mod result;

use std::ptr;

use self::result::Attribution;
use crate::recorder::Recorder;
use crate::thread_state::{
    CachedFrame, CachedLayer, FRAME_CACHE_ENTRIES, LAYER_CACHE_ENTRIES, PackageCall, STACK_CACHE_ENTRIES, Slot,
    ThreadState,
};
use interpose_base::frame_role::FrameRole;
use interpose_python::walk::{Interpreter, RawFrame};
use memlab_trace::record::{Flags, Phase};

/// Attributes the calling thread's current operation.
#[inline(always)] // Called for each event by the hooks on blocks.
pub fn here(recorder: &Recorder, thread: &mut ThreadState) -> Attribution {
    let workspace = if thread.workspace { Flags::WORKSPACE } else { 0 };
    let Some(python) = recorder.interpreter() else {
        let phase = if thread.backward.running { Phase::Backward as u32 } else { Phase::Other as u32 };
        let own =
            in_package(recorder, thread, WalkedStack { stack: 0, layer: 0, roles: FrameRole::empty() }, ptr::null());
        return Attribution { stack: own.stack, layer: 0, flags: phase | workspace };
    };
    let innermost = python.innermost();
    if thread.backward.running {
        let backward = thread.backward;
        if innermost == backward.frame_at_entry {
            // No Python ran since the engine took this node: the event belongs to the forward operation.
            let linked = if backward.stack != 0 || backward.layer != 0 { Flags::LINKED } else { 0 };
            return Attribution {
                stack: backward.stack,
                layer: backward.layer,
                flags: Phase::Backward as u32 | linked | workspace,
            };
        }
        // Python code in the backward: an autograd.Function, a hook, or activation checkpointing rerunning the forward.
        let own = walk(recorder, python, thread, innermost, (backward.stack, backward.layer));
        if own.roles.intersects(FrameRole::BENCHMARK) {
            return benchmark(own, workspace);
        }
        let again = if own.roles.intersects(FrameRole::MODULE_CALL) { Flags::RECOMPUTE } else { 0 };
        // A hook that steps an optimizer, on a thread whose frames were all called by the engine. (With frames before, the
        // optimizer may have called backward.)
        let steps = own.roles.intersects(FrameRole::OPTIMIZER_STEP) && backward.frame_at_entry.is_null();
        let phase = if steps { Phase::Optimizer as u32 } else { Phase::Backward as u32 };
        let flags = phase | again | kept_for(own.roles) | workspace;
        return Attribution { stack: own.stack, layer: own.layer, flags };
    }
    let own = walk(recorder, python, thread, innermost, (0, 0));
    let own = in_package(recorder, thread, own, innermost);
    if own.roles.intersects(FrameRole::BENCHMARK) {
        return benchmark(own, workspace);
    }
    // An autograd node was created with this same stack: the allocation belongs to the operation that created the node.
    let differentiable = own.stack != 0 && thread.nodes.last_stack == own.stack;
    // The same holds for allocations of a compiled function with a backward. Its node is created later, with another stack.
    let differentiable = differentiable || own.roles.contains(FrameRole::OUTSIDE | FrameRole::COMPILED_FORWARD);
    // The optimizer's code creates no nodes; a closure that it calls does.
    let phase = if own.roles.intersects(FrameRole::COMPILED_BACKWARD) {
        Phase::Backward as u32
    } else if own.roles.intersects(FrameRole::OPTIMIZER_STEP) && !differentiable {
        Phase::Optimizer as u32
    } else if own.layer != 0 {
        Phase::Forward as u32
    } else {
        Phase::Other as u32
    };
    let moved = if own.roles.intersects(FrameRole::MODULE_APPLY) { Flags::MOVED_MODULE } else { 0 };
    let differentiable = if differentiable { Flags::GRADIENT_NODE } else { 0 };
    let outside = if own.roles.intersects(FrameRole::OUTSIDE) { Flags::OUTSIDE } else { 0 };
    let flags = phase | differentiable | moved | outside | kept_for(own.roles) | workspace;
    Attribution { stack: own.stack, layer: own.layer, flags }
}

/// Attributes a compiler's benchmark, which belongs to no layer and no phase.
#[cold]
fn benchmark(own: WalkedStack, workspace: u32) -> Attribution {
    Attribution { stack: own.stack, layer: 0, flags: Phase::Other as u32 | Flags::BENCHMARK | workspace }
}

/// Flags of memory that is classified by the function that allocates it.
#[inline]
fn kept_for(roles: FrameRole) -> u32 {
    if roles.intersects(FrameRole::KEPT_FOR) { purpose(roles) } else { 0 }
}

#[cold]
fn purpose(roles: FrameRole) -> u32 {
    let purposes = [
        (FrameRole::KV_CACHE, Flags::KV_CACHE),
        (FrameRole::WORKSPACE, Flags::WORKSPACE),
        (FrameRole::COMMUNICATION, Flags::COMMUNICATION),
        (FrameRole::GATHERED, Flags::GATHERED),
        (FrameRole::REDUCE_SCATTER, Flags::REDUCE_SCATTER),
        (FrameRole::DDP_BUCKET, Flags::DDP_BUCKET),
    ];
    let flag = |(role, flag)| if roles.intersects(role) { flag } else { 0 };
    purposes.into_iter().map(flag).fold(0, |flags, flag| flags | flag)
}

#[derive(Clone, Copy)]
struct WalkedStack {
    stack: u32,
    layer: u32,
    roles: FrameRole,
}

/// Walks the stack and interns it, on top of stack and layer `base`, reusing the common prefix with this thread's last
/// stack.
///
/// Frames are compared from the outermost inwards, by code object, position and (for module calls) module. A position in a
/// caller cannot change while the callee runs, so equal prefixes are the same frames for attribution.
#[inline]
fn walk(
    recorder: &Recorder,
    python: &Interpreter,
    thread: &mut ThreadState,
    innermost: *const u8,
    base: (u32, u32),
) -> WalkedStack {
    let deaths = recorder.module_deaths();
    if thread.module_deaths != deaths {
        thread.forget_modules();
        thread.module_deaths = deaths;
    }
    let [first, second] = &mut thread.frames;
    let (last, frames) = if thread.walked == 0 { (first, second) } else { (second, first) };
    let count = python.walk(innermost, frames, &last[..thread.slot_count]);
    thread.walked ^= 1;
    let mut shared = 0;
    if thread.slots_base == base {
        let limit = count.min(thread.slot_count);
        while shared < limit {
            let (raw, slot) = (&frames[count - 1 - shared], &thread.slots[shared]);
            let same = slot.code == raw.code
                && slot.position == raw.position
                && slot.identity == python.identity(raw.code)
                && (slot.module.is_null() || is_module(python, slot, raw));
            if !same {
                break;
            }
            shared += 1;
        }
    }
    thread.slots_base = base;
    for depth in shared..count {
        let raw = thread.frames[thread.walked][count - 1 - depth];
        let below =
            if depth == 0 { Slot { stack: base.0, layer: base.1, ..Slot::EMPTY } } else { thread.slots[depth - 1] };
        thread.slots[depth] = name(recorder, python, thread, &raw, &below);
    }
    thread.slot_count = count;
    match count {
        0 => WalkedStack { stack: base.0, layer: base.1, roles: FrameRole::empty() },
        _ => {
            let top = &thread.slots[count - 1];
            WalkedStack { stack: top.stack, layer: top.layer, roles: top.roles }
        }
    }
}

/// Attributes an event inside an AOTInductor package to the package's line.
///
/// The Python stack of `own` runs the package.
#[inline]
fn in_package(recorder: &Recorder, thread: &mut ThreadState, own: WalkedStack, innermost: *const u8) -> WalkedStack {
    let PackageCall { frame, has_node, python } = thread.package;
    if frame == 0 || python != innermost {
        return own;
    }
    let stack = stack(recorder, thread, own.stack, frame);
    if !has_node {
        return WalkedStack { stack, ..own };
    }
    let roles = if own.layer == 0 { own.roles | FrameRole::OUTSIDE } else { own.roles };
    let layer = layer(recorder, thread, (own.layer, frame as usize, 0), || {
        recorder.interner.package_layer(&recorder.log, own.layer, frame)
    });
    WalkedStack { stack, layer, roles }
}

/// Returns the stack of `frame` on top of the stack `below`.
#[inline]
fn stack(recorder: &Recorder, thread: &mut ThreadState, below: u32, frame: u32) -> u32 {
    let key = u64::from(below) << 32 | u64::from(frame);
    let cached = &mut thread.stack_cache[hash(u64::from(below), u64::from(frame)) % STACK_CACHE_ENTRIES];
    if cached.0 != key {
        *cached = (key, recorder.interner.stack(&recorder.log, below, frame));
    }
    cached.1
}

/// Returns the slot of frame `raw`, whose caller has the slot `below`.
fn name(recorder: &Recorder, python: &Interpreter, thread: &mut ThreadState, raw: &RawFrame, below: &Slot) -> Slot {
    let identity = python.identity(raw.code);
    let cached = &mut thread.frame_cache[hash(raw.code as u64, raw.position as u64) % FRAME_CACHE_ENTRIES];
    if cached.code != raw.code || cached.position != raw.position || cached.frame.identity != identity {
        let (frame, wants_name) = recorder.interner.frame(&recorder.log, python, raw, identity);
        *cached = CachedFrame { code: raw.code, position: raw.position, frame };
        if wants_name {
            recorder.schedule_agent();
        }
    }
    let frame = cached.frame;

    let mut slot = Slot {
        code: raw.code,
        position: raw.position,
        identity,
        roles: below.roles.with(frame.role),
        role: frame.role,
        stack: stack(recorder, thread, below.stack, frame.id),
        layer: below.layer,
        module: ptr::null(),
        class: ptr::null(),
        innermost_module: below.innermost_module,
    };
    if frame.role.intersects(FrameRole::COMPILED_BACKWARD) {
        slot.layer = 0;
    } else if frame.role.intersects(FrameRole::GENERATED | FrameRole::WRAPPER) {
        let is_wrapper = frame.role.intersects(FrameRole::WRAPPER);
        if below.layer == 0 && is_wrapper {
            slot.roles |= FrameRole::OUTSIDE;
        }
        // The graph that a captured backward runs is not a layer: its operations belong to several layers.
        let is_captured = is_wrapper && below.roles.intersects(FrameRole::COMPILED_BACKWARD);
        let parent = if is_captured { 0 } else { below.layer };
        slot.layer = layer(recorder, thread, (parent, frame.id as usize, 0), || {
            recorder.interner.generated_layer(&recorder.log, python, parent, frame, raw)
        });
    } else if let Some(local) = frame.role.local() {
        slot.module = python.local(raw.frame, local);
        slot.class = python.class(slot.module);
        let is_node = frame.role.intersects(FrameRole::GRAPH_NODE);
        let is_graph = !is_node && below.roles.intersects(FrameRole::COMPILED_BACKWARD);
        // `_wrapped_call_impl` and `_call_impl` are two frames of one call; a graph runs each of its nodes once.
        if !slot.module.is_null() && !is_graph && (is_node || slot.module != below.innermost_module) {
            if !is_node {
                slot.innermost_module = slot.module;
            }
            let key = (below.layer, slot.module as usize, slot.class as usize);
            slot.layer = layer(recorder, thread, key, || {
                recorder.interner.layer(&recorder.log, python, below.layer, slot.module, is_node)
            });
        }
    }
    slot
}

/// Returns true if the frame still calls the module that it called when the slot was filled.
#[inline]
fn is_module(python: &Interpreter, slot: &Slot, raw: &RawFrame) -> bool {
    let module = slot.role.local().map_or(ptr::null(), |local| python.local(raw.frame, local));
    ptr::eq(slot.module, module) && ptr::eq(slot.class, python.class(module))
}

/// Returns the layer that `parent` calls, from the cache or from `make`.
///
/// `key` and `class` are the module's address and its class, or a frame's id and 0.
fn layer(
    recorder: &Recorder,
    thread: &mut ThreadState,
    (parent, key, class): (u32, usize, usize),
    make: impl FnOnce() -> (u32, bool),
) -> u32 {
    let cached = &mut thread.layer_cache[hash(u64::from(parent), key as u64) % LAYER_CACHE_ENTRIES];
    if cached.layer == 0 || cached.parent != parent || cached.key != key || cached.class != class {
        let (layer, new) = make();
        *cached = CachedLayer { parent, layer, key, class };
        if new {
            recorder.schedule_agent();
        }
    }
    cached.layer
}

/// Hashes two words to spread them over a cache; addresses differ in their middle bits.
#[inline]
fn hash(a: u64, b: u64) -> usize {
    let mixed = (a.rotate_left(32) ^ b).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 40) as usize
}
