//! CUDA graphs: the place of their capture, their private pool, and their end.

use std::ffi::{CStr, c_int, c_void};

use super::hook::{TorchHook, Versions};
use crate::attribution;
use crate::cuda::graph_captures;
use crate::recorder::Recorder;
use interpose_base::panics;
use interpose_base::symbols::{Real, abort_without};
use interpose_driver::device::current_device;

/// `c10::MempoolId_t`, a pair that is passed and returned in two registers.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PoolId {
    first: u64,
    second: u64,
}

type CaptureBegin = unsafe extern "C-unwind" fn(*mut c_void, PoolId, c_int);
type OfGraph = unsafe extern "C-unwind" fn(*mut c_void);
type PoolOf = unsafe extern "C-unwind" fn(*mut c_void) -> PoolId;

const LIBRARY: &CStr = c"libtorch_cuda.so";
const CAPTURE_BEGIN: &CStr = c"_ZN2at4cuda9CUDAGraph13capture_beginESt4pairIyyE21cudaStreamCaptureMode";
const CAPTURE_END: &CStr = c"_ZN2at4cuda9CUDAGraph11capture_endEv";
const CAPTURE_END_PRE: &CStr = c"_ZN2at4cuda9CUDAGraph15capture_end_preEv";
const RESET: &CStr = c"_ZN2at4cuda9CUDAGraph5resetEv";

static REAL_BEGIN: Real<CaptureBegin> = Real::in_library(LIBRARY, CAPTURE_BEGIN);
static REAL_END: Real<OfGraph> = Real::in_library(LIBRARY, CAPTURE_END);
static REAL_END_PRE: Real<OfGraph> = Real::in_library(LIBRARY, CAPTURE_END_PRE);
static REAL_RESET: Real<OfGraph> = Real::in_library(LIBRARY, RESET);
static POOL: Real<PoolOf> = Real::in_library(LIBRARY, c"_ZN2at4cuda9CUDAGraph4poolEv");

/// Hook for `CUDAGraph::capture_begin`: a graph's capture begins.
///
/// No lock is held; the GIL is not held.
///
/// # Safety
///
/// Must be called as PyTorch calls its function.
#[unsafe(export_name = "_ZN2at4cuda9CUDAGraph13capture_beginESt4pairIyyE21cudaStreamCaptureMode")]
pub unsafe extern "C-unwind" fn capture_begin(graph: *mut c_void, pool: PoolId, mode: c_int) {
    if let Some(session) = Recorder::enter_if_recording() {
        session.thread.capture.answer = 0;
    }
    let Some(real) = REAL_BEGIN.get() else { abort_without("capture_begin") };
    // SAFETY: PyTorch's function with the arguments it was called with.
    unsafe { real(graph, pool, mode) };
    if let Some(session) = Recorder::enter_if_recording() {
        // PyTorch has just queried the number of its capture.
        let capture = session.thread.capture.answer;
        if capture != 0 {
            panics::catch(|| graph_captures::begun(graph.addr(), capture, current_device()));
        }
    }
}

/// Hook for `CUDAGraph::capture_end`: a graph's capture ends.
///
/// No lock is held; the GIL is not held.
///
/// # Safety
///
/// Must be called as PyTorch calls its function.
#[unsafe(export_name = "_ZN2at4cuda9CUDAGraph11capture_endEv")]
pub unsafe extern "C-unwind" fn capture_end(graph: *mut c_void) {
    let Some(real) = REAL_END.get() else { abort_without("capture_end") };
    // SAFETY: PyTorch's function with the argument it was called with.
    unsafe { captured(graph, real) };
}

/// Hook for the first part of [`capture_end`], which Python calls directly.
///
/// # Safety
///
/// Must be called as PyTorch calls its function.
#[unsafe(export_name = "_ZN2at4cuda9CUDAGraph15capture_end_preEv")]
pub unsafe extern "C-unwind" fn capture_end_pre(graph: *mut c_void) {
    let Some(real) = REAL_END_PRE.get() else { abort_without("capture_end_pre") };
    // SAFETY: PyTorch's function with the argument it was called with.
    unsafe { captured(graph, real) };
}

/// Ends a capture by calling `real`, and records it if that does not throw.
///
/// # Safety
///
/// `graph` and `real` are PyTorch's.
unsafe fn captured(graph: *mut c_void, real: OfGraph) {
    let ended = panics::catch(|| graph_captures::ending(graph.addr())).flatten();
    // SAFETY: the caller promises that both are PyTorch's.
    unsafe { real(graph) };
    let (Some(ended), Some(pool_of)) = (ended, POOL.get()) else { return };
    // SAFETY: PyTorch's function, which only reads; it throws only before a capture has ended.
    let pool = unsafe { pool_of(graph) };
    if let Some(session) = Recorder::enter_if_recording() {
        panics::catch(|| {
            let stack = attribution::here(session.recorder, session.thread).stack;
            session.graph_captured(ended.device, ended.capture, (pool.first, pool.second), stack);
        });
    }
}

/// Hook for `CUDAGraph::reset`: the program releases a graph, or its object ends.
///
/// # Safety
///
/// Must be called as PyTorch calls its function.
#[unsafe(export_name = "_ZN2at4cuda9CUDAGraph5resetEv")]
pub unsafe extern "C-unwind" fn reset(graph: *mut c_void) {
    let known = panics::catch(|| graph_captures::remove(graph.addr())).flatten();
    if let Some(known) = known
        && let Some(session) = Recorder::enter_if_recording()
    {
        panics::catch(|| session.graph_gone(known.device, known.capture));
    }
    let Some(real) = REAL_RESET.get() else { abort_without("reset") };
    // SAFETY: PyTorch's function with the argument it was called with.
    unsafe { real(graph) };
}

/// Every hook in this file.
pub fn hooks() -> Vec<TorchHook> {
    const MISSING: &str = "private pools of CUDA graphs are not distinguished";
    let always = |symbol, address, name| TorchHook::always(symbol, LIBRARY, address, name, MISSING);
    vec![
        always(CAPTURE_BEGIN, capture_begin as *const c_void, "at::cuda::CUDAGraph::capture_begin"),
        always(CAPTURE_END, capture_end as *const c_void, "at::cuda::CUDAGraph::capture_end"),
        TorchHook {
            symbol: CAPTURE_END_PRE,
            library: LIBRARY,
            address: capture_end_pre as *const c_void,
            versions: Versions::since((2, 15)),
            name: "at::cuda::CUDAGraph::capture_end_pre",
            lost: MISSING,
        },
        always(RESET, reset as *const c_void, "at::cuda::CUDAGraph::reset"),
    ]
}
