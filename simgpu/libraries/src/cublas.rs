//! cuBLAS handles and their settings.

use std::ffi::CStr;

use crate::elements;
use simgpu_support::api::{CUBLAS_INVALID_VALUE, SUCCESS, answer, api};
use simgpu_support::device_memory;
use simgpu_support::kernels::{self, Arithmetic};
use simgpu_support::table::Table;

/// Settings and memory of a handle.
#[derive(Default)]
struct Handle {
    stream: usize,
    math_mode: i32,
    pointer_mode: i32,
    atomics_mode: i32,
    sm_count: i32,
    /// Device memory of the handle.
    memory: u64,
}

static HANDLES: Table<Handle> = Table::new();

/// Device memory of each handle. The real size depends on version and card. torch provides its workspace separately.
const OWN_MEMORY: usize = 4 << 20;

/// `CUBLAS_TF32_TENSOR_OP_MATH`.
const TF32_TENSOR_OP_MATH: i32 = 3;

const NOT_INITIALIZED: i32 = 1;
const ALLOC_FAILED: i32 = 3;

/// `CUBLAS_STATUS_EXECUTION_FAILED`.
pub const EXECUTION_FAILED: i32 = 13;

/// Version that `cublasGetVersion` returns: that of the cuBLAS in CUDA 13.2.
pub const VERSION: i32 = 130_400;

fn with(handle: usize, body: impl FnOnce(&mut Handle)) -> i32 {
    HANDLES.get(handle, body).map_or(NOT_INITIALIZED, |()| SUCCESS)
}

/// Launches a kernel on the stream of a handle.
pub fn launch(handle: usize, kernel: &'static CStr, blocks: u32, arithmetic: Arithmetic) -> i32 {
    match HANDLES.get(handle, |handle| handle.stream) {
        None => NOT_INITIALIZED,
        Some(stream) if kernels::launch(kernel, blocks, stream, arithmetic) => SUCCESS,
        Some(_) => EXECUTION_FAILED,
    }
}

/// Launches a batch of matrix products: of `m` x `k` and `k` x `n` matrices, of elements of this `cudaDataType`.
pub fn multiply(handle: usize, kernel: &'static CStr, sizes: [i32; 3], batch: i32, kind: i32) -> i32 {
    let is_rounded = HANDLES.get(handle, |handle| handle.math_mode == TF32_TENSOR_OP_MATH).unwrap_or(false);
    let [m, n, k] = sizes.map(|size| u64::try_from(size).unwrap_or(0));
    let arithmetic = elements::product(u64::try_from(batch).unwrap_or(1), (m, n, k), kind, is_rounded);
    launch(handle, kernel, kernels::tiles(m, n), arithmetic)
}

api! {
    fn cublasCreate_v2(to: *mut usize) {
        let Some(memory) = device_memory::allocate(OWN_MEMORY) else { return ALLOC_FAILED };
        answer(to, HANDLES.add(Handle { memory, ..Handle::default() }));
        SUCCESS
    }

    fn cublasDestroy_v2(handle: usize) {
        match HANDLES.remove(handle) {
            Some(handle) => {
                device_memory::free(handle.memory);
                SUCCESS
            }
            None => NOT_INITIALIZED,
        }
    }

    fn cublasGetVersion_v2(_handle: usize, to: *mut i32) {
        answer(to, VERSION);
        SUCCESS
    }

    fn cublasGetProperty(which: i32, to: *mut i32) {
        let Some(part) = usize::try_from(which).ok().and_then(|which| [13, 4, 0].get(which).copied()) else {
            return CUBLAS_INVALID_VALUE;
        };
        answer(to, part);
        SUCCESS
    }

    fn cublasSetStream_v2(handle: usize, stream: usize) {
        with(handle, |handle| handle.stream = stream)
    }

    fn cublasGetStream_v2(handle: usize, to: *mut usize) {
        with(handle, |handle| answer(to, handle.stream))
    }

    fn cublasSetMathMode(handle: usize, mode: i32) {
        with(handle, |handle| handle.math_mode = mode)
    }

    fn cublasGetMathMode(handle: usize, to: *mut i32) {
        with(handle, |handle| answer(to, handle.math_mode))
    }

    fn cublasSetPointerMode_v2(handle: usize, mode: i32) {
        with(handle, |handle| handle.pointer_mode = mode)
    }

    fn cublasGetPointerMode_v2(handle: usize, to: *mut i32) {
        with(handle, |handle| answer(to, handle.pointer_mode))
    }

    fn cublasSetAtomicsMode(handle: usize, mode: i32) {
        with(handle, |handle| handle.atomics_mode = mode)
    }

    fn cublasGetAtomicsMode(handle: usize, to: *mut i32) {
        with(handle, |handle| answer(to, handle.atomics_mode))
    }

    fn cublasSetSmCountTarget(handle: usize, count: i32) {
        with(handle, |handle| handle.sm_count = count)
    }

    fn cublasGetSmCountTarget(handle: usize, to: *mut i32) {
        with(handle, |handle| answer(to, handle.sm_count))
    }

    fn cublasSetWorkspace_v2(handle: usize, _address: u64, _bytes: usize) {
        with(handle, |_| ())
    }
}
