//! Stream capture: work on a capturing stream is not executed, and becomes a node of a graph.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use simgpu_observer::Task;

use crate::api::{answer, answer_if_asked, api};
use crate::code::{Answer, Code};
use crate::graph_parts;
use crate::objects::{Capture, Graph, Work};
use crate::state::{DriverState, state};
use crate::stream_handle;

// CUstreamCaptureMode
const RELAXED: i32 = 2;
const GLOBAL: i32 = 0;

// CUstreamCaptureStatus
const NONE: i32 = 0;
const ACTIVE: i32 = 1;
const INVALIDATED: i32 = 2;

/// Number of captures in progress, so that a launch can skip the lock at 0.
static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The thread's `cuThreadExchangeStreamCaptureMode`.
    static MODE: Cell<i32> = const { Cell::new(GLOBAL) };
}

fn thread_id() -> u64 {
    // SAFETY: has no preconditions.
    unsafe { libc::pthread_self() as u64 }
}

/// Returns true if any stream of the process is capturing.
pub fn any_under_way() -> bool {
    UNDER_WAY.load(Ordering::Acquire) > 0
}

fn find(state: &DriverState, stream: usize) -> Option<usize> {
    let part = |capture: &Capture| capture.origin == stream || capture.forked.contains_key(&stream);
    state.captures.iter().find(|(_, capture)| part(capture)).map(|(handle, _)| *handle)
}

/// Returns the valid capture to which a stream belongs.
pub fn of(state: &DriverState, stream: usize) -> Result<Option<usize>, Code> {
    match find(state, stream) {
        Some(capture) if state.captures[&capture].invalid => Err(Code::STREAM_CAPTURE_INVALIDATED),
        other => Ok(other),
    }
}

/// Submits work to a stream: returns true if the caller must execute it now, false if it became a node.
///
/// Work on the legacy stream fails while a stream that synchronises with it captures.
pub fn submit(state: &mut DriverState, stream: usize, work: Work) -> Result<bool, Code> {
    submit_task(state, stream, work, None)
}

/// Submits work on the device like [`submit`], and stores its task in the node.
pub fn submit_task(state: &mut DriverState, stream: usize, work: Work, task: Option<Task>) -> Result<bool, Code> {
    if state.captures.is_empty() {
        return Ok(true);
    }
    if stream_handle::is_legacy(stream) {
        let blocking =
            |origin: &usize| state.streams.get(origin).is_some_and(|s| s.flags & stream_handle::NON_BLOCKING == 0);
        let implicit = state.captures.values().any(|capture| blocking(&capture.origin));
        return if implicit { Err(Code::STREAM_CAPTURE_IMPLICIT) } else { Ok(true) };
    }
    let node = add(state, stream, work)?;
    if let Some(node) = node.and_then(|node| state.nodes.get_mut(&node)) {
        node.task = task;
    }
    Ok(node.is_none())
}

/// Adds a node for work on a capturing stream; returns `None` if the stream does not capture.
pub fn add(state: &mut DriverState, stream: usize, work: Work) -> Result<Option<usize>, Code> {
    let Some(handle) = of(state, stream)? else { return Ok(None) };
    let capture = state.captures.get_mut(&handle).ok_or(Code::UNKNOWN)?;
    if let Some(unjoined) = capture.forked.get_mut(&stream) {
        *unjoined = true;
    }
    let (graph, dependencies) = (capture.graph, capture.last.clone());
    let node = graph_parts::add_node(state, graph, work, dependencies)?;
    if let Some(capture) = state.captures.get_mut(&handle) {
        capture.last = vec![node];
    }
    Ok(Some(node))
}

/// Fails a call that a capturing stream does not allow, and invalidates the capture.
pub fn refuse(state: &mut DriverState, stream: usize) -> Answer {
    let Some(capture) = find(state, stream) else { return Ok(()) };
    if let Some(capture) = state.captures.get_mut(&capture) {
        capture.invalid = true;
    }
    Err(Code::STREAM_CAPTURE_UNSUPPORTED)
}

/// Fails a potentially unsafe call (`cudaMalloc`, a synchronisation …) if a capture in progress forbids it to this
/// thread, by the rules of `cudaThreadExchangeStreamCaptureMode`.
pub fn forbid_unsafe(state: &mut DriverState) -> Answer {
    let mode = MODE.with(Cell::get);
    if state.captures.is_empty() || mode == RELAXED {
        return Ok(());
    }
    let own = thread_id();
    for capture in state.captures.values_mut() {
        let by_own = capture.thread == own && capture.mode != RELAXED;
        let by_other = capture.mode == GLOBAL && mode == GLOBAL;
        if by_own || by_other {
            capture.invalid = true;
            return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
        }
    }
    Ok(())
}

/// Makes a stream wait for an event that was recorded on stream `from` of a capture.
pub fn join(state: &mut DriverState, handle: usize, from: usize, stream: usize) -> Answer {
    match find(state, stream) {
        Some(other) if other != handle => return Err(Code::STREAM_CAPTURE_MERGE),
        None if stream_handle::is_legacy(stream) => return Err(Code::STREAM_CAPTURE_IMPLICIT),
        _ => {}
    }
    let capture = state.captures.get_mut(&handle).ok_or(Code::CAPTURED_EVENT)?;
    if let Some(unjoined) = capture.forked.get_mut(&from) {
        *unjoined = false;
    }
    if stream != capture.origin {
        capture.forked.insert(stream, true);
    }
    Ok(())
}

fn begin(state: &mut DriverState, stream: usize, mode: i32, graph: usize) -> Answer {
    stream_handle::check(state, stream)?;
    if stream_handle::is_legacy(stream) {
        return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
    }
    if !(0..=2).contains(&mode) {
        return Err(Code::INVALID_VALUE);
    }
    if find(state, stream).is_some() {
        return Err(Code::ILLEGAL_STATE);
    }
    let handle = state.new_handle();
    let thread = thread_id();
    let capture =
        Capture { graph, mode, thread, origin: stream, invalid: false, forked: HashMap::new(), last: Vec::new() };
    state.captures.insert(handle, capture);
    UNDER_WAY.fetch_add(1, Ordering::AcqRel);
    Ok(())
}

fn new_graph(state: &mut DriverState) -> usize {
    let graph = state.new_handle();
    state.graphs.insert(graph, Graph::default());
    graph
}

/// Returns status, id, graph and last nodes of a stream's capture.
fn info(state: &DriverState, stream: usize) -> Result<(i32, u64, usize, &[usize]), Code> {
    stream_handle::check(state, stream)?;
    let Some(handle) = find(state, stream) else { return Ok((NONE, 0, 0, &[])) };
    let capture = &state.captures[&handle];
    let status = if capture.invalid { INVALIDATED } else { ACTIVE };
    Ok((status, handle as u64 / 64, capture.graph, &capture.last))
}

api! {
    fn cuStreamBeginCapture_v2 | cuStreamBeginCapture_v2_ptsz (stream: usize, mode: i32) {
        let mut state = state()?;
        let graph = new_graph(&mut state);
        begin(&mut state, stream, mode, graph)?;
    }

    fn cuStreamBeginCapture | cuStreamBeginCapture_ptsz (stream: usize) {
        let mut state = state()?;
        let graph = new_graph(&mut state);
        begin(&mut state, stream, GLOBAL, graph)?;
    }

    fn cuStreamBeginCaptureToGraph | cuStreamBeginCaptureToGraph_ptsz (
        stream: usize, graph: usize, _dependencies: *const usize, _edges: *const u8, _count: usize, mode: i32,
    ) {
        let mut state = state()?;
        if !state.graphs.contains_key(&graph) {
            return Err(Code::INVALID_VALUE);
        }
        begin(&mut state, stream, mode, graph)?;
    }

    fn cuThreadExchangeStreamCaptureMode(mode: *mut i32) {
        if mode.is_null() || !(0..=2).contains(&*mode) {
            return Err(Code::INVALID_VALUE);
        }
        *mode = MODE.with(|own| own.replace(*mode));
    }

    fn cuStreamEndCapture | cuStreamEndCapture_ptsz (stream: usize, graph: *mut usize) {
        let mut state = state()?;
        stream_handle::check(&state, stream)?;
        let handle = find(&state, stream).ok_or(Code::ILLEGAL_STATE)?;
        let capture = &state.captures[&handle];
        if capture.origin != stream {
            return Err(Code::STREAM_CAPTURE_UNMATCHED);
        }
        if capture.mode != RELAXED && capture.thread != thread_id() {
            return Err(Code::STREAM_CAPTURE_WRONG_THREAD);
        }
        let capture = state.captures.remove(&handle).ok_or(Code::UNKNOWN)?;
        UNDER_WAY.fetch_sub(1, Ordering::AcqRel);
        let ending = match capture {
            Capture { invalid: true, .. } => Err(Code::STREAM_CAPTURE_INVALIDATED),
            Capture { ref forked, .. } if forked.values().any(|unjoined| *unjoined) => Err(Code::STREAM_CAPTURE_UNJOINED),
            _ => Ok(()),
        };
        answer_if_asked(graph, if ending.is_ok() { capture.graph } else { 0 });
        ending?;
    }

    fn cuStreamIsCapturing | cuStreamIsCapturing_ptsz (stream: usize, status: *mut i32) {
        if any_under_way() {
            let state = state()?;
            answer(status, info(&state, stream)?.0)?;
        } else {
            answer(status, NONE)?;
        }
    }

    fn cuStreamGetCaptureInfo | cuStreamGetCaptureInfo_ptsz (stream: usize, status: *mut i32, id: *mut u64) {
        let state = state()?;
        let info = info(&state, stream)?;
        answer(status, info.0)?;
        answer_if_asked(id, info.1);
    }

    fn cuStreamGetCaptureInfo_v2 | cuStreamGetCaptureInfo_v2_ptsz (
        stream: usize, status: *mut i32, id: *mut u64, graph: *mut usize, dependencies: *mut *const usize,
        count: *mut usize,
    ) {
        let state = state()?;
        let info = info(&state, stream)?;
        answer(status, info.0)?;
        answer_if_asked(id, info.1);
        answer_if_asked(graph, info.2);
        answer_if_asked(dependencies, info.3.as_ptr());
        answer_if_asked(count, info.3.len());
    }

    fn cuStreamGetCaptureInfo_v3 | cuStreamGetCaptureInfo_v3_ptsz (
        stream: usize, status: *mut i32, id: *mut u64, graph: *mut usize, dependencies: *mut *const usize,
        edges: *mut *const u8, count: *mut usize,
    ) {
        let state = state()?;
        let info = info(&state, stream)?;
        answer(status, info.0)?;
        answer_if_asked(id, info.1);
        answer_if_asked(graph, info.2);
        answer_if_asked(dependencies, info.3.as_ptr());
        answer_if_asked(edges, std::ptr::null());
        answer_if_asked(count, info.3.len());
    }

    fn cuStreamUpdateCaptureDependencies | cuStreamUpdateCaptureDependencies_ptsz (
        stream: usize, dependencies: *const usize, count: usize, flags: u32,
    ) {
        update_dependencies(stream, graph_parts::handles(dependencies, count), flags)?;
    }

    fn cuStreamUpdateCaptureDependencies_v2 | cuStreamUpdateCaptureDependencies_v2_ptsz (
        stream: usize, dependencies: *const usize, _edges: *const u8, count: usize, flags: u32,
    ) {
        update_dependencies(stream, graph_parts::handles(dependencies, count), flags)?;
    }
}

/// Changes the nodes on which the next node depends: `flags` 0 adds to them, 1 replaces them.
fn update_dependencies(stream: usize, nodes: Vec<usize>, flags: u32) -> Answer {
    let mut state = state()?;
    let handle = of(&state, stream)?.ok_or(Code::ILLEGAL_STATE)?;
    let capture = state.captures.get_mut(&handle).ok_or(Code::UNKNOWN)?;
    if flags == 1 {
        capture.last.clear();
    }
    capture.last.extend(nodes);
    Ok(())
}
