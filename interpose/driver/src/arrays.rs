//! Sizes of arrays and pitched memory.

use std::ffi::c_uint;

use super::types::{Array3dShape, ArrayShape};

/// Bytes from one row of pitched memory to the next, on all present devices.
pub fn pitch(width: usize) -> usize {
    const ALIGNMENT: usize = 512;
    width.checked_next_multiple_of(ALIGNMENT).unwrap_or(width)
}

/// Bytes of one channel of a `CUarray_format`.
fn format_bytes(format: c_uint) -> u64 {
    match format {
        0x02 | 0x09 | 0x10 => 2, // 16-bit integers and floats
        0x03 | 0x0a | 0x20 => 4, // 32-bit integers and floats
        _ => 1,                  // bytes, and video and texture formats, whose size is an estimate
    }
}

/// Bytes of an array from `cuArrayCreate`.
pub fn array_bytes(shape: ArrayShape) -> u64 {
    volume(shape.width, shape.height, 1)
        .saturating_mul(u64::from(shape.channels))
        .saturating_mul(format_bytes(shape.format))
}

/// Bytes of an array from `cuArray3DCreate`.
pub fn array3d_bytes(shape: Array3dShape) -> u64 {
    volume(shape.width, shape.height, shape.depth)
        .saturating_mul(u64::from(shape.channels))
        .saturating_mul(format_bytes(shape.format))
}

/// Bytes of an array from `cuMipmappedArrayCreate`: each level has half the width, height and depth of the one before.
pub fn mipmapped_bytes(shape: Array3dShape, levels: c_uint) -> u64 {
    let dimensions = [shape.width, shape.height, shape.depth].into_iter().filter(|&size| size > 1).count();
    let base = array3d_bytes(shape);
    (0..levels.min(32)).map(|level| base >> (level as usize * dimensions).min(63)).sum()
}

/// A height or depth of 0 means that the array has no such dimension.
fn volume(width: usize, height: usize, depth: usize) -> u64 {
    (width as u64).saturating_mul(height.max(1) as u64).saturating_mul(depth.max(1) as u64)
}
