//! cuBLASLt: descriptors, and a heuristic that returns one algorithm without a workspace.

use crate::cublas::{EXECUTION_FAILED, VERSION};
use crate::elements;
use simgpu_support::api::{CUBLAS_INVALID_VALUE, SUCCESS, answer, api};
use simgpu_support::kernels::{self, Arithmetic, kernel_name};
use simgpu_support::table::{Table, new_handle};

/// A matrix, or a batch of them.
#[derive(Clone, Copy)]
struct Layout {
    /// `cudaDataType`.
    kind: i32,
    rows: u64,
    columns: u64,
    batch: u64,
}

static LAYOUTS: Table<Layout> = Table::new();

/// True for the descriptors of operations that may round float32 to TF32.
static OPERATIONS: Table<bool> = Table::new();

/// `CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT`, an `int32_t`.
const BATCH_COUNT: i32 = 5;

/// `CUBLAS_COMPUTE_32F_FAST_TF32`.
const FAST_TF32: i32 = 77;

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

    fn cublasLtMatmulDescCreate(to: *mut usize, compute: i32, _scale: i32) {
        answer(to, OPERATIONS.add(compute == FAST_TF32));
        SUCCESS
    }

    fn cublasLtMatmulDescDestroy(operation: usize) {
        OPERATIONS.remove(operation);
        SUCCESS
    }

    fn cublasLtMatrixLayoutCreate(to: *mut usize, kind: i32, rows: u64, columns: u64, _stride: i64) {
        answer(to, LAYOUTS.add(Layout { kind, rows, columns, batch: 1 }));
        SUCCESS
    }

    fn cublasLtMatrixLayoutSetAttribute(layout: usize, attribute: i32, value: *const i32, _bytes: usize) {
        if attribute == BATCH_COUNT && !value.is_null() {
            let batch = u64::try_from(value.read_unaligned()).unwrap_or(1);
            LAYOUTS.get(layout, |layout| layout.batch = batch);
        }
        SUCCESS
    }

    fn cublasLtMatrixLayoutDestroy(layout: usize) {
        LAYOUTS.remove(layout);
        SUCCESS
    }

    fn cublasLtMatmul(
        _handle: usize, operation: usize, _alpha: usize, _a: usize, a_layout: usize, _b: usize, _b_layout: usize,
        _beta: usize, _c: usize, _c_layout: usize, _d: usize, layout: usize, _algorithm: usize, _workspace: usize,
        _bytes: usize, stream: usize,
    ) {
        let known = |layout| LAYOUTS.get(layout, |layout| *layout);
        let (mut blocks, mut arithmetic) = (1, Arithmetic::default());
        if let (Some(left), Some(Layout { rows, columns, batch, .. })) = (known(a_layout), known(layout)) {
            let inner = left.rows * left.columns / rows.max(1);
            let is_rounded = OPERATIONS.get(operation, |is_rounded| *is_rounded).unwrap_or(false);
            blocks = kernels::tiles(rows, columns);
            arithmetic = elements::product(batch, (rows, columns, inner), left.kind, is_rounded);
        }
        let launched = kernels::launch(kernel_name!(cublasLtMatmul), blocks, stream, arithmetic);
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
