//! Captures of streams into graphs.
//!
//! They are tracked in every program: memory may have spilled, and frees during a capture are deferred.

use std::ffi::c_int;

use super::hook::{driver_hook, driver_hook_table};
use interpose_base::panics;
use interpose_driver::calls::CUDA_SUCCESS;
use interpose_driver::types::Handle;
use interpose_driver::vmm::{allocations, captures, gate, mode};

/// Records the start of a capture, for the threads that must wait for its end.
macro_rules! begins_capture {
    ($name:ident [] ($stream:ident: $type:ty $(, $arg:ident: $more:ty)*) {}) => {
        driver_hook! { $name [] ($stream: $type $(, $arg: $more)*) { |real| {
            let _pass = gate::enter();
            let is_new = captures::begins($stream as u64);
            let result = real($stream $(, $arg)*);
            if result != CUDA_SUCCESS && is_new {
                captures::ended($stream as u64);
            }
            result
        } } }
    };
}

/// Records the end of a capture.
///
/// It does not pass the gate: the thread that closes the gate waits for it.
macro_rules! ends_capture {
    ($name:ident [] ($stream:ident: $type:ty $(, $arg:ident: $more:ty)*) {}) => {
        driver_hook! { $name [] ($stream: $type $(, $arg: $more)*) { |real| {
            let result = real($stream $(, $arg)*);
            match result {
                CUDA_SUCCESS => captures::ended($stream as u64),
                _ => captures::ended_perhaps($stream as u64),
            }
            if mode::holds_memory() {
                panics::catch(allocations::free_deferred);
            }
            result
        } } }
    };
}

driver_hook_table! {
    begins_capture[] cuStreamBeginCapture(stream: Handle, mode: c_int) 10010:
        cuStreamBeginCapture_v2 / cuStreamBeginCapture_v2_ptsz => {};
    begins_capture[] cuStreamBeginCaptureToGraph(
        stream: Handle, graph: Handle, dependencies: Handle, edges: Handle, count: usize, mode: c_int
    ) 12030: cuStreamBeginCaptureToGraph / cuStreamBeginCaptureToGraph_ptsz => {};
    ends_capture[] cuStreamEndCapture(stream: Handle, graph: Handle) 10000:
        cuStreamEndCapture / cuStreamEndCapture_ptsz => {};
    ends_capture[] cuStreamDestroy(stream: Handle) 4000: cuStreamDestroy_v2 => {};
}
