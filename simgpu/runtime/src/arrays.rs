//! Arrays, and 2D and 3D copies through the driver's 3D copy.

use crate::api::{answer, api};
use crate::code::{Answer, Error};
use crate::driver_calls::Driver;
use crate::memory::{Extent, Pitched};

/// `cudaChannelFormatDesc`: bits of each channel and their kind (0 signed, 1 unsigned, 2 float).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Channels {
    bits: [i32; 4],
    kind: i32,
}

/// `CUDA_ARRAY3D_DESCRIPTOR`.
#[repr(C)]
#[derive(Default)]
struct Shape {
    width: usize,
    height: usize,
    depth: usize,
    format: u32,
    channels: u32,
    flags: u32,
}

impl Shape {
    fn new(channels: *const Channels, extent: Extent, flags: u32) -> Result<Shape, Error> {
        // SAFETY: the callers' callers vouch for the pointer.
        let Channels { bits, kind } = *unsafe { channels.as_ref() }.ok_or(Error::INVALID_VALUE)?;
        let format = match (kind, bits[0]) {
            (1, 8) => 0x01,
            (1, 16) => 0x02,
            (1, 32) => 0x03,
            (0, 8) => 0x08,
            (0, 16) => 0x09,
            (0, 32) => 0x0a,
            (2, 16) => 0x10,
            (2, 32) => 0x20,
            _ => return Err(Error(20)), // cudaErrorInvalidChannelDescriptor
        };
        let channels = bits.iter().filter(|bits| **bits > 0).count() as u32;
        let Extent { width, height, depth } = extent;
        Ok(Shape { width, height, depth, format, channels, flags })
    }

    fn element(&self) -> usize {
        let channel = match self.format {
            0x01 | 0x08 => 1,
            0x02 | 0x09 | 0x10 => 2,
            _ => 4,
        };
        channel * self.channels as usize
    }
}

fn element(cu: &Driver, array: usize) -> Result<usize, Error> {
    let mut shape = Shape::default();
    // SAFETY: the answer goes to a local of the right size.
    unsafe { cu.cuArray3DGetDescriptor((&raw mut shape).cast(), array) }?;
    Ok(shape.element())
}

/// One side of `CUDA_MEMCPY3D`.
#[repr(C)]
#[derive(Default)]
struct Side {
    x: usize,
    y: usize,
    z: usize,
    level: usize,
    kind: u32,
    host: u64,
    device: u64,
    array: usize,
    reserved: usize,
    pitch: usize,
    height: usize,
}

/// `CUDA_MEMCPY3D` (200 bytes).
#[repr(C)]
struct Copy3d {
    from: Side,
    to: Side,
    extent: Extent,
}

const _: () = assert!(size_of::<Copy3d>() == 200);

const UNIFIED: u32 = 4;
const ARRAY: u32 = 3;

fn plain(address: u64, pitch: usize, height: usize) -> Side {
    Side { kind: UNIFIED, device: address, pitch, height, ..Side::default() }
}

fn in_array(array: usize, x: usize, y: usize) -> Side {
    Side { kind: ARRAY, array, x, y, ..Side::default() }
}

/// # Safety
/// The ranges are valid, as the program promises.
unsafe fn copy(cu: &Driver, to: Side, from: Side, extent: Extent, stream: Option<usize>) -> Answer {
    let what = Copy3d { from, to, extent };
    let what = (&raw const what).cast();
    // SAFETY: `what` is a whole descriptor; the caller vouches for the ranges.
    unsafe {
        match stream {
            Some(stream) => cu.cuMemcpy3DAsync(what, stream),
            None => cu.cuMemcpy3D(what),
        }
    }
}

/// `cudaMemcpy3DParms` (160 bytes); positions are in array elements if an array is involved.
#[repr(C)]
pub struct Params3d {
    from_array: usize,
    from_at: [usize; 3],
    from: Pitched,
    to_array: usize,
    to_at: [usize; 3],
    to: Pitched,
    extent: Extent,
    kind: i32,
}

const _: () = assert!(size_of::<Params3d>() == 160);

/// # Safety
/// `params` points to a whole `cudaMemcpy3DParms`.
unsafe fn copy_3d(cu: &Driver, params: *const Params3d, stream: Option<usize>) -> Answer {
    // SAFETY: the caller vouches for the pointer.
    let params = unsafe { params.as_ref() }.ok_or(Error::INVALID_VALUE)?;
    let array = if params.from_array != 0 { params.from_array } else { params.to_array };
    let unit = if array != 0 { element(cu, array)? } else { 1 };
    let side = |array: usize, at: [usize; 3], pitched: Pitched| {
        let mut side = if array != 0 {
            in_array(array, at[0] * unit, at[1])
        } else {
            plain(pitched.address, pitched.pitch, pitched.height)
        };
        (side.x, side.y, side.z) = (at[0] * if array != 0 { unit } else { 1 }, at[1], at[2]);
        side
    };
    let extent = Extent { width: params.extent.width * unit, ..params.extent };
    let to = side(params.to_array, params.to_at, params.to);
    let from = side(params.from_array, params.from_at, params.from);
    // SAFETY: the ranges are those of the program's parameters.
    unsafe { copy(cu, to, from, extent, stream) }
}

/// Returns a channel description by value; cannot fail.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn cudaCreateChannelDesc(x: i32, y: i32, z: i32, w: i32, kind: i32) -> Channels {
    Channels { bits: [x, y, z, w], kind }
}

const fn flat(width: usize, height: usize) -> Extent {
    Extent { width, height, depth: 1 }
}

api! {
    fn cudaMallocArray(cu; array: *mut usize, channels: *const Channels, width: usize, height: usize, flags: u32) {
        let shape = Shape::new(channels, Extent { width, height, depth: 0 }, flags)?;
        cu.cuArray3DCreate(array, (&raw const shape).cast())?;
    }

    fn cudaMalloc3DArray(cu; array: *mut usize, channels: *const Channels, extent: Extent, flags: u32) {
        let shape = Shape::new(channels, extent, flags)?;
        cu.cuArray3DCreate(array, (&raw const shape).cast())?;
    }

    fn cudaFreeArray(cu; array: usize) {
        if array != 0 {
            cu.cuArrayDestroy(array)?;
        }
    }

    fn cudaMallocMipmappedArray(
        cu; mipmap: *mut usize, channels: *const Channels, extent: Extent, levels: u32, flags: u32,
    ) {
        let shape = Shape::new(channels, extent, flags)?;
        cu.cuMipmappedArrayCreate(mipmap, (&raw const shape).cast(), levels)?;
    }

    fn cudaGetMipmappedArrayLevel(cu; array: *mut usize, mipmap: usize, level: u32) {
        cu.cuMipmappedArrayGetLevel(array, mipmap, level)?;
    }

    fn cudaFreeMipmappedArray(cu; mipmap: usize) {
        if mipmap != 0 {
            cu.cuMipmappedArrayDestroy(mipmap)?;
        }
    }

    fn cudaArrayGetInfo(cu; channels: *mut Channels, extent: *mut Extent, flags: *mut u32, array: usize) {
        let mut shape = Shape::default();
        cu.cuArray3DGetDescriptor((&raw mut shape).cast(), array)?;
        let (kind, bits) = match shape.format {
            0x01 => (1, 8),
            0x02 => (1, 16),
            0x03 => (1, 32),
            0x08 => (0, 8),
            0x09 => (0, 16),
            0x0a => (0, 32),
            0x10 => (2, 16),
            _ => (2, 32),
        };
        let used = |channel: u32| if channel < shape.channels { bits } else { 0 };
        if !channels.is_null() {
            answer(channels, Channels { bits: [used(0), used(1), used(2), used(3)], kind })?;
        }
        if !extent.is_null() {
            answer(extent, Extent { width: shape.width, height: shape.height, depth: shape.depth })?;
        }
        if !flags.is_null() {
            answer(flags, shape.flags)?;
        }
    }

    fn cudaMemcpy2D | cudaMemcpy2D_ptds (
        cu; to: u64, to_pitch: usize, from: u64, from_pitch: usize, width: usize, height: usize, _kind: i32,
    ) {
        copy(cu, plain(to, to_pitch, height), plain(from, from_pitch, height), flat(width, height), None)?;
    }

    fn cudaMemcpy2DAsync | cudaMemcpy2DAsync_ptsz (
        cu; to: u64, to_pitch: usize, from: u64, from_pitch: usize, width: usize, height: usize, _kind: i32,
        stream: usize,
    ) {
        copy(cu, plain(to, to_pitch, height), plain(from, from_pitch, height), flat(width, height), Some(stream))?;
    }

    fn cudaMemcpy2DToArray | cudaMemcpy2DToArray_ptds (
        cu; to: usize, x: usize, y: usize, from: u64, pitch: usize, width: usize, height: usize, _kind: i32,
    ) {
        copy(cu, in_array(to, x, y), plain(from, pitch, height), flat(width, height), None)?;
    }

    fn cudaMemcpy2DFromArray | cudaMemcpy2DFromArray_ptds (
        cu; to: u64, pitch: usize, from: usize, x: usize, y: usize, width: usize, height: usize, _kind: i32,
    ) {
        copy(cu, plain(to, pitch, height), in_array(from, x, y), flat(width, height), None)?;
    }

    fn cudaMemcpy2DToArrayAsync | cudaMemcpy2DToArrayAsync_ptsz (
        cu; to: usize, x: usize, y: usize, from: u64, pitch: usize, width: usize, height: usize, _kind: i32,
        stream: usize,
    ) {
        copy(cu, in_array(to, x, y), plain(from, pitch, height), flat(width, height), Some(stream))?;
    }

    fn cudaMemcpy2DFromArrayAsync | cudaMemcpy2DFromArrayAsync_ptsz (
        cu; to: u64, pitch: usize, from: usize, x: usize, y: usize, width: usize, height: usize, _kind: i32,
        stream: usize,
    ) {
        copy(cu, plain(to, pitch, height), in_array(from, x, y), flat(width, height), Some(stream))?;
    }

    fn cudaMemcpy3D | cudaMemcpy3D_ptds (cu; params: *const Params3d) {
        copy_3d(cu, params, None)?;
    }

    fn cudaMemcpy3DAsync | cudaMemcpy3DAsync_ptsz (cu; params: *const Params3d, stream: usize) {
        copy_3d(cu, params, Some(stream))?;
    }
}
