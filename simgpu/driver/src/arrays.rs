//! CUDA arrays as plain pitched memory.

use crate::allocation::{allocate, release};
use crate::api::{answer, api};
use crate::capture;
use crate::code::Code;
use crate::fail::count_allocation;
use crate::objects::{Array, Shape};
use crate::space::Kind;
use crate::state::{DriverState, state};

/// `CUDA_ARRAY_DESCRIPTOR` (24 bytes).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Shape2d {
    width: u64,
    height: u64,
    format: u32,
    channels: u32,
}

const _: () = assert!(size_of::<Shape>() == 40 && size_of::<Shape2d>() == 24);

impl Shape {
    /// Returns the bytes of one element: `CU_AD_FORMAT_*` 8-bit (1, 8), 16-bit (2, 9, 0x10), 32-bit (3, 0xa, 0x20).
    fn element(&self) -> Result<u64, Code> {
        let channel = match self.format {
            0x01 | 0x08 => 1,
            0x02 | 0x09 | 0x10 => 2,
            0x03 | 0x0a | 0x20 => 4,
            _ => return Err(Code::INVALID_VALUE),
        };
        if matches!(self.channels, 1 | 2 | 4) {
            Ok(channel * u64::from(self.channels))
        } else {
            Err(Code::INVALID_VALUE)
        }
    }

    fn pitch(&self) -> Result<u64, Code> {
        Ok(self.width * self.element()?)
    }
}

fn create(state: &mut DriverState, shape: Shape) -> Result<usize, Code> {
    capture::forbid_unsafe(state)?;
    if shape.width == 0 {
        return Err(Code::INVALID_VALUE);
    }
    count_allocation()?;
    let bytes = shape.pitch()? * shape.height.max(1) * shape.depth.max(1);
    let base = allocate(state, bytes, Kind::Device)?;
    let handle = state.new_handle();
    state.arrays.insert(handle, Array { shape, base });
    Ok(handle)
}

fn destroy(state: &mut DriverState, array: usize) -> Result<(), Code> {
    let array = state.arrays.remove(&array).ok_or(Code::INVALID_HANDLE)?;
    if let Some(block) = state.space.remove(array.base) {
        release(state, block);
    }
    Ok(())
}

/// Returns address, bytes per row and rows per slice of an array.
pub fn layout(state: &DriverState, array: usize) -> Result<(u64, u64, u64), Code> {
    let array = state.arrays.get(&array).ok_or(Code::INVALID_HANDLE)?;
    Ok((array.base, array.shape.pitch()?, array.shape.height.max(1)))
}

api! {
    fn cuArrayCreate_v2(array: *mut usize, shape: *const Shape2d) {
        let Shape2d { width, height, format, channels } = *shape.as_ref().ok_or(Code::INVALID_VALUE)?;
        let handle = create(&mut *state()?, Shape { width, height, depth: 0, format, channels, flags: 0 })?;
        answer(array, handle)?;
    }

    fn cuArray3DCreate_v2(array: *mut usize, shape: *const Shape) {
        let handle = create(&mut *state()?, *shape.as_ref().ok_or(Code::INVALID_VALUE)?)?;
        answer(array, handle)?;
    }

    fn cuArrayDestroy(array: usize) {
        destroy(&mut *state()?, array)?;
    }

    fn cuArrayGetDescriptor_v2(to: *mut Shape2d, array: usize) {
        let state = state()?;
        let Shape { width, height, format, channels, .. } = state.arrays.get(&array).ok_or(Code::INVALID_HANDLE)?.shape;
        answer(to, Shape2d { width, height, format, channels })?;
    }

    fn cuArray3DGetDescriptor_v2(to: *mut Shape, array: usize) {
        let state = state()?;
        answer(to, state.arrays.get(&array).ok_or(Code::INVALID_HANDLE)?.shape)?;
    }

    fn cuMipmappedArrayCreate(mipmap: *mut usize, shape: *const Shape, levels: u32) {
        let mut level = *shape.as_ref().ok_or(Code::INVALID_VALUE)?;
        let mut state = state()?;
        let mut arrays = Vec::new();
        for _ in 0..levels.max(1) {
            arrays.push(create(&mut state, level)?);
            level.width = (level.width / 2).max(1);
            level.height /= 2;
            level.depth /= 2;
        }
        let handle = state.new_handle();
        state.mipmaps.insert(handle, arrays);
        answer(mipmap, handle)?;
    }

    fn cuMipmappedArrayGetLevel(array: *mut usize, mipmap: usize, level: u32) {
        let state = state()?;
        let levels = state.mipmaps.get(&mipmap).ok_or(Code::INVALID_HANDLE)?;
        answer(array, *levels.get(level as usize).ok_or(Code::INVALID_VALUE)?)?;
    }

    fn cuMipmappedArrayDestroy(mipmap: usize) {
        let mut state = state()?;
        for array in state.mipmaps.remove(&mipmap).ok_or(Code::INVALID_HANDLE)? {
            destroy(&mut state, array)?;
        }
    }
}
