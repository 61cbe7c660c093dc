//! cuBLASLt: descriptors, and a heuristic that returns one algorithm without a workspace.

use crate::cublas::{EXECUTION_FAILED, VERSION};
use simgpu_support::api::{CUBLAS_INVALID_VALUE, SUCCESS, answer, api};
use simgpu_support::kernels::{self, kernel_name};
use simgpu_support::table::{Table, new_handle};

/// Rows and columns in matrix layouts.
static LAYOUTS: Table<(u64, u64)> = Table::new();

/// `cublasLtMatmulHeuristicResult_t` (96 bytes).
#[repr(C)]
struct Heuristic {
    algorithm: [u64; 8],
    workspace: usize,
    state: i32,
    waves: f32,
    reserved: [i32; 4],
}

const _: () = assert!(size_of::<Heuristic>() == 96);

const ALGORITHM: Heuristic =
    Heuristic { algorithm: [1, 0, 0, 0, 0, 0, 0, 0], workspace: 0, state: SUCCESS, waves: 1.0, reserved: [0; 4] };

api! {
    fn cublasLtCreate(to: *mut usize) {
        answer(to, new_handle());
        SUCCESS
    }

    fn cublasLtMatmulDescCreate(to: *mut usize, _compute: i32, _scale: i32) {
        answer(to, new_handle());
        SUCCESS
    }

    fn cublasLtMatrixLayoutCreate(to: *mut usize, _kind: i32, rows: u64, columns: u64, _stride: i64) {
        answer(to, LAYOUTS.add((rows, columns)));
        SUCCESS
    }

    fn cublasLtMatrixLayoutDestroy(layout: usize) {
        LAYOUTS.remove(layout);
        SUCCESS
    }

    fn cublasLtMatmul(
        _handle: usize, _operation: usize, _alpha: usize, _a: usize, _a_layout: usize, _b: usize, _b_layout: usize,
        _beta: usize, _c: usize, _c_layout: usize, _d: usize, layout: usize, _algorithm: usize, _workspace: usize,
        _bytes: usize, stream: usize,
    ) {
        let (rows, columns) = LAYOUTS.get(layout, |layout| *layout).unwrap_or((1, 1));
        let launched = kernels::launch(kernel_name!(cublasLtMatmul), kernels::tiles(rows, columns), stream);
        if launched { SUCCESS } else { EXECUTION_FAILED }
    }

    fn cublasLtMatmulPreferenceCreate(to: *mut usize) {
        answer(to, new_handle());
        SUCCESS
    }

    fn cublasLtMatrixTransformDescCreate(to: *mut usize, _scale: i32) {
        answer(to, new_handle());
        SUCCESS
    }

    fn cublasLtMatmulAlgoGetHeuristic(
        _handle: usize, _operation: usize, _a: usize, _b: usize, _c: usize, _d: usize, _preference: usize, wanted: i32,
        to: *mut Heuristic, found: *mut i32,
    ) {
        if wanted < 1 || to.is_null() {
            return CUBLAS_INVALID_VALUE;
        }
        answer(to, ALGORITHM);
        answer(found, 1);
        SUCCESS
    }

    fn cublasLtMatmulAlgoCheck(
        _handle: usize, _operation: usize, _a: usize, _b: usize, _c: usize, _d: usize, _algorithm: usize,
        to: *mut Heuristic,
    ) {
        answer(to, ALGORITHM);
        SUCCESS
    }

    fn cublasLtMatmulAlgoGetIds(
        _handle: usize, _compute: i32, _scale: i32, _a: i32, _b: i32, _c: i32, _d: i32, wanted: i32, ids: *mut i32,
        found: *mut i32,
    ) {
        if wanted > 0 {
            answer(ids, 1);
        }
        answer(found, 1);
        SUCCESS
    }

    fn cublasLtMatmulAlgoInit(
        _handle: usize, _compute: i32, _scale: i32, _a: i32, _b: i32, _c: i32, _d: i32, _id: i32, to: *mut [u64; 8],
    ) {
        answer(to, ALGORITHM.algorithm);
        SUCCESS
    }

    fn cublasLtMatmulAlgoConfigGetAttribute(
        _algorithm: usize, _attribute: i32, to: *mut u8, bytes: usize, written: *mut usize,
    ) {
        if !to.is_null() {
            to.write_bytes(0, bytes);
        }
        answer(written, bytes);
        SUCCESS
    }
}

/// Returns the version, not a status.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn cublasLtGetVersion() -> usize {
    VERSION as usize
}

/// Returns the version of the runtime that the library was built with.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn cublasLtGetCudartVersion() -> usize {
    13_020
}
