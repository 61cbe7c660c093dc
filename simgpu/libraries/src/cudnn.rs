//! cuDNN handles, tensor and filter descriptors, and the sizes from which programs compute their allocations.

use std::ffi::{CStr, c_char};
use std::sync::LazyLock;

use crate::cudnn_planner::planner;
use simgpu_support::api::{CUDNN_8_NOT_SUPPORTED, CUDNN_BAD_PARAM, SUCCESS, answer, api};
use simgpu_support::table::{Table, new_handle};

/// Version if the program has loaded cuDNN 8, as torch up to 2.3 does: torch requires the major version that it was
/// compiled with.
///
/// Encoded as major * 1000 + minor * 100 + patch.
const VERSION_8: [usize; 3] = [8, 9, 7];

/// Version for all other programs without a planning cuDNN: at least the one that every torch since 2.4 was compiled
/// with.
const VERSION_9: [usize; 3] = [9, 26, 0];

/// Returns major, minor and patch version.
fn version() -> [usize; 3] {
    static VERSION: LazyLock<[usize; 3]> = LazyLock::new(|| {
        // SAFETY: the name is NUL-terminated; RTLD_NOLOAD loads nothing.
        let loaded = unsafe { libc::dlopen(c"libcudnn.so.8".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        match planner() {
            Some(planner) => [planner.version / 10_000, planner.version / 100 % 100, planner.version % 100],
            None if loaded.is_null() => VERSION_9,
            None => VERSION_8,
        }
    });
    *VERSION
}

/// Contents of a tensor or filter descriptor.
#[derive(Clone, Default)]
pub struct Shape {
    /// `cudnnDataType_t`.
    pub kind: i32,
    /// `cudnnTensorFormat_t`, for filters.
    pub format: i32,
    pub dimensions: Vec<i32>,
    pub strides: Vec<i32>,
}

/// Tensor and filter descriptors.
pub static SHAPES: Table<Shape> = Table::new();

/// Returns the bytes per element of a `cudnnDataType_t`.
pub fn element_bytes(kind: i32) -> usize {
    match kind {
        1 | 10 => 8,     // double, int64
        2 | 9 => 2,      // half, bfloat16
        3 | 7 | 11 => 1, // int8, uint8, boolean
        _ => 4,
    }
}

/// Workspace size of every algorithm.
pub const WORKSPACE: usize = 1 << 20;

/// # Safety
/// `from` points to `count` integers.
unsafe fn integers(from: *const i32, count: i32) -> Vec<i32> {
    if from.is_null() || count <= 0 {
        return Vec::new();
    }
    // SAFETY: the caller vouches for `count` integers.
    unsafe { std::slice::from_raw_parts(from, count as usize).to_vec() }
}

/// # Safety
/// `to` is null or has room for `room` integers.
unsafe fn write_integers(to: *mut i32, from: &[i32], room: i32) {
    for (index, value) in from.iter().take(room.max(0) as usize).enumerate() {
        if !to.is_null() {
            // SAFETY: `index` is less than the caller's `room`.
            unsafe { to.add(index).write(*value) };
        }
    }
}

/// `cudnnConvolution{Fwd,BwdData,BwdFilter}AlgoPerf_t` (48 bytes).
#[repr(C)]
struct Performance {
    algorithm: i32,
    status: i32,
    time: f32,
    memory: usize,
    determinism: i32,
    math: i32,
    reserved: [i32; 3],
}

const _: () = assert!(size_of::<Performance>() == 48);

/// Writes one algorithm, the first.
///
/// # Safety
/// `to` has room for `wanted` results.
unsafe fn algorithms(wanted: i32, found: *mut i32, to: *mut Performance) -> i32 {
    if wanted < 1 {
        return CUDNN_BAD_PARAM;
    }
    let only = Performance {
        algorithm: 1,
        status: SUCCESS,
        time: 0.1,
        memory: WORKSPACE,
        determinism: 1,
        math: 0,
        reserved: [0; 3],
    };
    // SAFETY: the caller vouches for room.
    unsafe {
        answer(to, only);
        answer(found, 1);
    }
    SUCCESS
}

/// Exports functions that create an opaque descriptor.
macro_rules! creators {
    ($($name:ident)*) => { api! { $(fn $name(to: *mut usize) {
        answer(to, new_handle());
        SUCCESS
    })* } };
}

creators! {
    cudnnCreate cudnnCreateActivationDescriptor cudnnCreateAttnDescriptor cudnnCreateCTCLossDescriptor
    cudnnCreateConvolutionDescriptor cudnnCreateDropoutDescriptor cudnnCreateLRNDescriptor cudnnCreateOpTensorDescriptor
    cudnnCreatePoolingDescriptor cudnnCreateReduceTensorDescriptor cudnnCreateSeqDataDescriptor
    cudnnCreateSpatialTransformerDescriptor
}

/// Exports functions that return a size through their last argument, by the number of arguments before it.
macro_rules! sizes {
    ($($name:ident($($arg:ident)*) = $bytes:expr;)*) => { api! { $(fn $name($($arg: usize,)* to: *mut usize) {
        $(let _ = $arg;)*
        answer(to, $bytes);
        SUCCESS
    })* } };
}

sizes! {
    cudnnDropoutGetStatesSize(_handle) = 4 << 20;
    cudnnDropoutGetReserveSpaceSize(_tensor) = WORKSPACE;
    cudnnGetConvolutionForwardWorkspaceSize(_handle _x _w _conv _y _algorithm) = WORKSPACE;
    cudnnGetConvolutionBackwardDataWorkspaceSize(_handle _w _dy _conv _dx _algorithm) = WORKSPACE;
    cudnnGetConvolutionBackwardFilterWorkspaceSize(_handle _x _dy _conv _dw _algorithm) = WORKSPACE;
    cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(_handle _mode _ops _x _z _y _scale _activation) = 0;
    cudnnGetBatchNormalizationBackwardExWorkspaceSize(_handle _mode _ops _x _y _dy _dz _dx _scale _activation) = 0;
    cudnnGetBatchNormalizationTrainingExReserveSpaceSize(_handle _mode _ops _activation _x) = 0;
    cudnnGetCTCLossWorkspaceSize(_handle _probabilities _gradients _labels _label_lengths _lengths _algorithm _loss) = WORKSPACE;
    cudnnGetCTCLossWorkspaceSize_v8(_handle _algorithm _loss _probabilities _gradients) = WORKSPACE;
}

api! {
    fn cudnnCreateTensorDescriptor(to: *mut usize) {
        answer(to, SHAPES.add(Shape::default()));
        SUCCESS
    }

    fn cudnnCreateFilterDescriptor(to: *mut usize) {
        answer(to, SHAPES.add(Shape::default()));
        SUCCESS
    }

    fn cudnnDestroyTensorDescriptor(descriptor: usize) {
        SHAPES.remove(descriptor);
        SUCCESS
    }

    fn cudnnDestroyFilterDescriptor(descriptor: usize) {
        SHAPES.remove(descriptor);
        SUCCESS
    }

    fn cudnnSetTensorNdDescriptor(
        descriptor: usize, kind: i32, count: i32, dimensions: *const i32, strides: *const i32,
    ) {
        let (dimensions, strides) = (integers(dimensions, count), integers(strides, count));
        let set = |shape: &mut Shape| *shape = Shape { kind, format: 0, dimensions, strides };
        SHAPES.get(descriptor, set).map_or(CUDNN_BAD_PARAM, |()| SUCCESS)
    }

    fn cudnnGetTensorNdDescriptor(
        descriptor: usize, room: i32, kind: *mut i32, count: *mut i32, dimensions: *mut i32, strides: *mut i32,
    ) {
        let get = |shape: &mut Shape| {
            answer(kind, shape.kind);
            answer(count, shape.dimensions.len() as i32);
            write_integers(dimensions, &shape.dimensions, room);
            write_integers(strides, &shape.strides, room);
        };
        SHAPES.get(descriptor, get).map_or(CUDNN_BAD_PARAM, |()| SUCCESS)
    }

    fn cudnnSetFilterNdDescriptor(descriptor: usize, kind: i32, format: i32, count: i32, dimensions: *const i32) {
        let dimensions = integers(dimensions, count);
        let set = |shape: &mut Shape| *shape = Shape { kind, format, dimensions, strides: Vec::new() };
        SHAPES.get(descriptor, set).map_or(CUDNN_BAD_PARAM, |()| SUCCESS)
    }

    fn cudnnGetFilterNdDescriptor(
        descriptor: usize, room: i32, kind: *mut i32, format: *mut i32, count: *mut i32, dimensions: *mut i32,
    ) {
        let get = |shape: &mut Shape| {
            answer(kind, shape.kind);
            answer(format, shape.format);
            answer(count, shape.dimensions.len() as i32);
            write_integers(dimensions, &shape.dimensions, room);
        };
        SHAPES.get(descriptor, get).map_or(CUDNN_BAD_PARAM, |()| SUCCESS)
    }

    fn cudnnGetProperty(which: i32, to: *mut i32) {
        let Some(part) = usize::try_from(which).ok().and_then(|which| version().get(which).copied()) else {
            return CUDNN_BAD_PARAM;
        };
        answer(to, part as i32);
        SUCCESS
    }

    fn cudnnGetConvolutionForwardAlgorithm_v7(
        _handle: usize, _x: usize, _w: usize, _conv: usize, _y: usize, wanted: i32, found: *mut i32,
        to: *mut Performance,
    ) {
        algorithms(wanted, found, to)
    }

    fn cudnnGetConvolutionBackwardDataAlgorithm_v7(
        _handle: usize, _w: usize, _dy: usize, _conv: usize, _dx: usize, wanted: i32, found: *mut i32,
        to: *mut Performance,
    ) {
        algorithms(wanted, found, to)
    }

    fn cudnnGetConvolutionBackwardFilterAlgorithm_v7(
        _handle: usize, _x: usize, _dy: usize, _conv: usize, _dw: usize, wanted: i32, found: *mut i32,
        to: *mut Performance,
    ) {
        algorithms(wanted, found, to)
    }

    fn cudnnFindConvolutionForwardAlgorithmEx(
        _handle: usize, _x: usize, _x_data: usize, _w: usize, _w_data: usize, _conv: usize, _y: usize, _y_data: usize,
        wanted: i32, found: *mut i32, to: *mut Performance, _workspace: usize, _bytes: usize,
    ) {
        algorithms(wanted, found, to)
    }

    fn cudnnFindConvolutionBackwardDataAlgorithmEx(
        _handle: usize, _w: usize, _w_data: usize, _dy: usize, _dy_data: usize, _conv: usize, _dx: usize,
        _dx_data: usize, wanted: i32, found: *mut i32, to: *mut Performance, _workspace: usize, _bytes: usize,
    ) {
        algorithms(wanted, found, to)
    }

    fn cudnnFindConvolutionBackwardFilterAlgorithmEx(
        _handle: usize, _x: usize, _x_data: usize, _dy: usize, _dy_data: usize, _conv: usize, _dw: usize,
        _dw_data: usize, wanted: i32, found: *mut i32, to: *mut Performance, _workspace: usize, _bytes: usize,
    ) {
        algorithms(wanted, found, to)
    }
}

/// Returns the version, not a status.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn cudnnGetVersion() -> usize {
    let [major, minor, patch] = version();
    major * if major < 9 { 1000 } else { 10_000 } + minor * 100 + patch
}

/// Returns the version of the runtime that the library was built with.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn cudnnGetCudartVersion() -> usize {
    13_020
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn cudnnGetErrorString(status: i32) -> *const c_char {
    let text: &CStr = match status {
        SUCCESS => c"CUDNN_STATUS_SUCCESS",
        CUDNN_BAD_PARAM => c"CUDNN_STATUS_BAD_PARAM",
        CUDNN_8_NOT_SUPPORTED => c"CUDNN_STATUS_NOT_SUPPORTED (simgpu has no recurrent networks of cuDNN 8)",
        _ => c"CUDNN_STATUS_INTERNAL_ERROR",
    };
    text.as_ptr()
}

/// # Safety
/// `to` has room for `room` characters.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
unsafe extern "C" fn cudnnGetLastErrorString(to: *mut c_char, room: usize) {
    if room > 0 {
        // SAFETY: there is room for one character.
        unsafe { answer(to, 0) };
    }
}
