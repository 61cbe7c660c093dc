//! Copying and filling memory, at the time of the call.

use std::sync::OnceLock;

use simgpu_observer::Task;

use crate::api::api;
use crate::arrays;
use crate::code::{Answer, Code};
use crate::copy_box::{Copy2d, Copy3d, copy_2d, copy_3d};
use crate::objects::Work;
use crate::order::Order::{self, Stream, Synchronous};
use crate::order::{accept, done};
use crate::pages;
use crate::state::state;
use crate::submitted;
use crate::written;

/// Sides of a copy that must be device memory.
#[derive(Clone, Copy)]
struct Sides {
    to_device: bool,
    from_device: bool,
}

const ANY: Sides = Sides { to_device: false, from_device: false };
const HOST_TO_DEVICE: Sides = Sides { to_device: true, from_device: false };
const DEVICE_TO_HOST: Sides = Sides { to_device: false, from_device: true };
const DEVICE_TO_DEVICE: Sides = Sides { to_device: true, from_device: true };

/// Copies from the host of this size are left out with `SIMGPU_DROP_COPIES=1`: they are weights, which no kernel reads.
const LARGE_COPY: usize = 4 << 20;

fn drops_large_copies() -> bool {
    static DROPS: OnceLock<bool> = OnceLock::new();
    *DROPS.get_or_init(|| std::env::var_os("SIMGPU_DROP_COPIES").is_some())
}

/// # Safety
/// Addresses that are not this driver's memory are host memory that the caller vouches for.
unsafe fn copy(to: u64, from: u64, bytes: usize, sides: Sides, order: Order) -> Answer {
    let (droppable, dropped, submitted_work) = {
        let mut state = state()?;
        let task = submitted::copy(&state, to, from, bytes as u64, order.is_async());
        let now = accept(&mut state, order, Work::MEMCPY, task)?;
        state.space.check(to, bytes as u64, sides.to_device)?;
        state.space.check(from, bytes as u64, sides.from_device)?;
        if !now {
            return Ok(());
        }
        let on_device = |address| state.space.find(address).is_some_and(|block| !block.is_host());
        let droppable = on_device(to) && on_device(from) && to.abs_diff(from) >= bytes as u64;
        let dropped = bytes >= LARGE_COPY && on_device(to) && !on_device(from) && drops_large_copies();
        if on_device(to) && !dropped {
            written::note(to, bytes as u64);
        }
        (droppable, dropped, done(&state, order, task))
    };
    // SAFETY: both ranges were checked to be accessible memory of this driver, or are the caller's host memory.
    unsafe {
        if dropped {
            pages::zero(to, bytes as u64);
        } else if droppable {
            pages::copy(to, from, bytes as u64);
        } else {
            std::ptr::copy(from as *const u8, to as *mut u8, bytes);
        }
    }
    submitted::notify(submitted_work);
    Ok(())
}

/// Fills `height` rows of `width` elements.
///
/// # Safety
/// The range is checked to be accessible memory of this driver; host memory is refused.
unsafe fn fill<T: Copy + Default + PartialEq + Into<u32>>(
    to: u64,
    pitch: usize,
    value: T,
    width: usize,
    height: usize,
    order: Order,
) -> Answer {
    let row = width * size_of::<T>();
    if !to.is_multiple_of(align_of::<T>() as u64) || (height > 1 && pitch < row) {
        return Err(Code::INVALID_VALUE);
    }
    if row == 0 || height == 0 {
        return Ok(());
    }
    let (droppable, submitted_work) = {
        let mut state = state()?;
        let task = Task::Fill { bytes: (row * height) as u64, value: value.into(), is_async: order.is_async() };
        let now = accept(&mut state, order, Work::MEMSET, task)?;
        let bytes = pitch * (height - 1) + row;
        state.space.check(to, bytes as u64, true)?;
        if !now {
            return Ok(());
        }
        // Registered pages belong to the program and may be those of a file.
        let droppable =
            value == T::default() && height == 1 && state.space.find(to).is_some_and(|block| !block.is_host());
        if !droppable {
            written::note(to, bytes as u64);
        }
        (droppable, done(&state, order, task))
    };
    // SAFETY: the whole range was checked to be accessible memory of this driver.
    unsafe {
        if droppable {
            pages::zero(to, row as u64);
        } else {
            for line in 0..height {
                std::slice::from_raw_parts_mut((to as usize + line * pitch) as *mut T, width).fill(value);
            }
        }
    }
    submitted::notify(submitted_work);
    Ok(())
}

/// # Safety
/// The arrays hold `count` elements each; see also [`copy`].
unsafe fn copy_batch(to: *const u64, from: *const u64, sizes: *const usize, count: usize, stream: usize) -> Answer {
    for index in 0..count {
        // SAFETY: the caller vouches for `count` elements and for the ranges they name.
        unsafe {
            copy(*to.add(index), *from.add(index), *sizes.add(index), ANY, Order::Stream(stream))?;
        }
    }
    Ok(())
}

api! {
    fn cuMemcpy | cuMemcpy_ptds (to: u64, from: u64, bytes: usize) {
        copy(to, from, bytes, ANY, Synchronous)?;
    }

    fn cuMemcpyAsync | cuMemcpyAsync_ptsz (to: u64, from: u64, bytes: usize, stream: usize) {
        copy(to, from, bytes, ANY, Stream(stream))?;
    }

    fn cuMemcpyHtoD_v2 | cuMemcpyHtoD_v2_ptds (to: u64, from: u64, bytes: usize) {
        copy(to, from, bytes, HOST_TO_DEVICE, Synchronous)?;
    }

    fn cuMemcpyHtoDAsync_v2 | cuMemcpyHtoDAsync_v2_ptsz (to: u64, from: u64, bytes: usize, stream: usize) {
        copy(to, from, bytes, HOST_TO_DEVICE, Stream(stream))?;
    }

    fn cuMemcpyDtoH_v2 | cuMemcpyDtoH_v2_ptds (to: u64, from: u64, bytes: usize) {
        copy(to, from, bytes, DEVICE_TO_HOST, Synchronous)?;
    }

    fn cuMemcpyDtoHAsync_v2 | cuMemcpyDtoHAsync_v2_ptsz (to: u64, from: u64, bytes: usize, stream: usize) {
        copy(to, from, bytes, DEVICE_TO_HOST, Stream(stream))?;
    }

    fn cuMemcpyDtoD_v2 | cuMemcpyDtoD_v2_ptds (to: u64, from: u64, bytes: usize) {
        copy(to, from, bytes, DEVICE_TO_DEVICE, Synchronous)?;
    }

    fn cuMemcpyDtoDAsync_v2 | cuMemcpyDtoDAsync_v2_ptsz (to: u64, from: u64, bytes: usize, stream: usize) {
        copy(to, from, bytes, DEVICE_TO_DEVICE, Stream(stream))?;
    }

    fn cuMemcpyPeer | cuMemcpyPeer_ptds (to: u64, _to_context: usize, from: u64, _from_context: usize, bytes: usize) {
        copy(to, from, bytes, DEVICE_TO_DEVICE, Synchronous)?;
    }

    fn cuMemcpyPeerAsync | cuMemcpyPeerAsync_ptsz (
        to: u64, _to_context: usize, from: u64, _from_context: usize, bytes: usize, stream: usize,
    ) {
        copy(to, from, bytes, DEVICE_TO_DEVICE, Stream(stream))?;
    }

    fn cuMemcpyHtoA_v2 | cuMemcpyHtoA_v2_ptds (array: usize, offset: usize, from: u64, bytes: usize) {
        let to = arrays::layout(&*state()?, array)?.0 + offset as u64;
        copy(to, from, bytes, HOST_TO_DEVICE, Synchronous)?;
    }

    fn cuMemcpyAtoH_v2 | cuMemcpyAtoH_v2_ptds (to: u64, array: usize, offset: usize, bytes: usize) {
        let from = arrays::layout(&*state()?, array)?.0 + offset as u64;
        copy(to, from, bytes, DEVICE_TO_HOST, Synchronous)?;
    }

    fn cuMemcpyDtoA_v2 | cuMemcpyDtoA_v2_ptds (array: usize, offset: usize, from: u64, bytes: usize) {
        let to = arrays::layout(&*state()?, array)?.0 + offset as u64;
        copy(to, from, bytes, DEVICE_TO_DEVICE, Synchronous)?;
    }

    fn cuMemcpyAtoD_v2 | cuMemcpyAtoD_v2_ptds (to: u64, array: usize, offset: usize, bytes: usize) {
        let from = arrays::layout(&*state()?, array)?.0 + offset as u64;
        copy(to, from, bytes, DEVICE_TO_DEVICE, Synchronous)?;
    }

    fn cuMemcpy2D_v2 | cuMemcpy2D_v2_ptds | cuMemcpy2DUnaligned_v2 | cuMemcpy2DUnaligned_v2_ptds (
        what: *const Copy2d,
    ) {
        copy_2d(what, Synchronous)?;
    }

    fn cuMemcpy2DAsync_v2 | cuMemcpy2DAsync_v2_ptsz (what: *const Copy2d, stream: usize) {
        copy_2d(what, Stream(stream))?;
    }

    fn cuMemcpy3D_v2 | cuMemcpy3D_v2_ptds | cuMemcpy3DPeer | cuMemcpy3DPeer_ptds (what: *const Copy3d) {
        copy_3d(what, Synchronous)?;
    }

    fn cuMemcpy3DAsync_v2 | cuMemcpy3DAsync_v2_ptsz | cuMemcpy3DPeerAsync | cuMemcpy3DPeerAsync_ptsz (
        what: *const Copy3d, stream: usize,
    ) {
        copy_3d(what, Stream(stream))?;
    }

    fn cuMemcpyBatchAsync | cuMemcpyBatchAsync_ptsz (
        to: *const u64, from: *const u64, sizes: *const usize, count: usize, _attributes: *const u8,
        _indices: *const usize, _attribute_count: usize, _failed: *mut usize, stream: usize,
    ) {
        copy_batch(to, from, sizes, count, stream)?;
    }

    fn cuMemcpyBatchAsync_v2 | cuMemcpyBatchAsync_v2_ptsz (
        to: *const u64, from: *const u64, sizes: *const usize, count: usize, _attributes: *const u8,
        _indices: *const usize, _attribute_count: usize, stream: usize,
    ) {
        copy_batch(to, from, sizes, count, stream)?;
    }

    fn cuMemcpyWithAttributesAsync | cuMemcpyWithAttributesAsync_ptsz (
        to: u64, from: u64, bytes: usize, _attributes: *const u8, stream: usize,
    ) {
        copy(to, from, bytes, ANY, Stream(stream))?;
    }

    fn cuMemsetD8_v2 | cuMemsetD8_v2_ptds (to: u64, value: u8, count: usize) {
        fill(to, 0, value, count, 1, Synchronous)?;
    }

    fn cuMemsetD16_v2 | cuMemsetD16_v2_ptds (to: u64, value: u16, count: usize) {
        fill(to, 0, value, count, 1, Synchronous)?;
    }

    fn cuMemsetD32_v2 | cuMemsetD32_v2_ptds (to: u64, value: u32, count: usize) {
        fill(to, 0, value, count, 1, Synchronous)?;
    }

    fn cuMemsetD8Async | cuMemsetD8Async_ptsz (to: u64, value: u8, count: usize, stream: usize) {
        fill(to, 0, value, count, 1, Stream(stream))?;
    }

    fn cuMemsetD16Async | cuMemsetD16Async_ptsz (to: u64, value: u16, count: usize, stream: usize) {
        fill(to, 0, value, count, 1, Stream(stream))?;
    }

    fn cuMemsetD32Async | cuMemsetD32Async_ptsz (to: u64, value: u32, count: usize, stream: usize) {
        fill(to, 0, value, count, 1, Stream(stream))?;
    }

    fn cuMemsetD2D8_v2 | cuMemsetD2D8_v2_ptds (to: u64, pitch: usize, value: u8, width: usize, height: usize) {
        fill(to, pitch, value, width, height, Synchronous)?;
    }

    fn cuMemsetD2D16_v2 | cuMemsetD2D16_v2_ptds (to: u64, pitch: usize, value: u16, width: usize, height: usize) {
        fill(to, pitch, value, width, height, Synchronous)?;
    }

    fn cuMemsetD2D32_v2 | cuMemsetD2D32_v2_ptds (to: u64, pitch: usize, value: u32, width: usize, height: usize) {
        fill(to, pitch, value, width, height, Synchronous)?;
    }

    fn cuMemsetD2D8Async | cuMemsetD2D8Async_ptsz (
        to: u64, pitch: usize, value: u8, width: usize, height: usize, stream: usize,
    ) {
        fill(to, pitch, value, width, height, Stream(stream))?;
    }

    fn cuMemsetD2D16Async | cuMemsetD2D16Async_ptsz (
        to: u64, pitch: usize, value: u16, width: usize, height: usize, stream: usize,
    ) {
        fill(to, pitch, value, width, height, Stream(stream))?;
    }

    fn cuMemsetD2D32Async | cuMemsetD2D32Async_ptsz (
        to: u64, pitch: usize, value: u32, width: usize, height: usize, stream: usize,
    ) {
        fill(to, pitch, value, width, height, Stream(stream))?;
    }
}
