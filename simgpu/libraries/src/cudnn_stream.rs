//! Streams of cuDNN's handles.

use std::ffi::CStr;

use simgpu_support::api::{SUCCESS, answer, api};
use simgpu_support::kernels::{self, Arithmetic};
use simgpu_support::table::Table;

/// `CUDNN_STATUS_EXECUTION_FAILED` of cuDNN 9.
const EXECUTION_FAILED: i32 = 5000;

/// Streams by handle, without those on the default stream.
static STREAMS: Table<usize> = Table::new();

/// Launches a kernel on the stream of a handle.
pub fn launch(handle: usize, kernel: &'static CStr, arithmetic: Arithmetic) -> i32 {
    let stream = STREAMS.get(handle, |stream| *stream).unwrap_or(0);
    if kernels::launch(kernel, 1, stream, arithmetic) { SUCCESS } else { EXECUTION_FAILED }
}

api! {
    fn cudnnSetStream(handle: usize, stream: usize) {
        STREAMS.with(|streams| streams.insert(handle, stream));
        SUCCESS
    }

    fn cudnnGetStream(handle: usize, to: *mut usize) {
        answer(to, STREAMS.get(handle, |stream| *stream).unwrap_or(0));
        SUCCESS
    }

    fn cudnnDestroy(handle: usize) {
        STREAMS.remove(handle);
        SUCCESS
    }
}
