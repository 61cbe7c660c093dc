//! Copying and filling memory, at the time of the call.

use simgpu_observer::{GraphNode, Submitted, Task};

use crate::api::api;
use crate::arrays;
use crate::capture;
use crate::code::{Answer, Code};
use crate::current::current;
use crate::objects::Work;
use crate::pages;
use crate::state::{State, state};
use crate::stream_handle;
use crate::submitted;

/// How a call relates to streams.
#[derive(Clone, Copy)]
enum Order {
    /// Complete at return, on the default stream: unsafe while a capture forbids it.
    Synchronous,
    /// On a stream.
    Stream(usize),
}

/// Which side of a copy must be device memory.
#[derive(Clone, Copy)]
struct Sides {
    to_device: bool,
    from_device: bool,
}

const ANY: Sides = Sides { to_device: false, from_device: false };
const HOST_TO_DEVICE: Sides = Sides { to_device: true, from_device: false };
const DEVICE_TO_HOST: Sides = Sides { to_device: false, from_device: true };
const DEVICE_TO_DEVICE: Sides = Sides { to_device: true, from_device: true };

impl Order {
    fn stream(self) -> usize {
        match self {
            Order::Synchronous => 0,
            Order::Stream(stream) => stream,
        }
    }

    fn is_async(self) -> bool {
        matches!(self, Order::Stream(_))
    }
}

/// Submits the work: true if the caller must execute it now.
fn accept(state: &mut State, order: Order, work: Work, task: Task) -> Result<bool, Code> {
    match order {
        Order::Synchronous => {
            current(state)?;
            capture::forbid_unsafe(state)?;
        }
        Order::Stream(stream) => stream_handle::check(state, stream)?,
    }
    capture::submit_task(state, order.stream(), work, Some(task))
}

/// What to tell of work that was executed.
fn done(state: &State, order: Order, task: Task) -> Option<Submitted> {
    submitted::on_stream(state, task, order.stream(), GraphNode::default())
}

/// # Safety
/// Addresses that are not this driver's memory are host memory that the caller vouches for.
unsafe fn copy(to: u64, from: u64, bytes: usize, sides: Sides, order: Order) -> Answer {
    let (droppable, told) = {
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
        (droppable, done(&state, order, task))
    };
    // SAFETY: both ranges were checked to be accessible memory of this driver, or are the caller's host memory.
    unsafe {
        if droppable {
            pages::copy(to, from, bytes as u64);
        } else {
            std::ptr::copy(from as *const u8, to as *mut u8, bytes);
        }
    }
    submitted::tell(told);
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
    let (droppable, told) = {
        let mut state = state()?;
        let task = Task::Fill { bytes: (row * height) as u64, value: value.into(), is_async: order.is_async() };
        let now = accept(&mut state, order, Work::MEMSET, task)?;
        let bytes = pitch * (height - 1) + row;
        state.space.check(to, bytes as u64, true)?;
        if !now {
            return Ok(());
        }
        // The pages of registered memory belong to the program and can be those of a file.
        let droppable =
            value == T::default() && height == 1 && state.space.find(to).is_some_and(|block| !block.is_host());
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
    submitted::tell(told);
    Ok(())
}

/// One side of a two- or three-dimensional copy: where the first byte is and how far apart rows and slices are.
#[derive(Clone, Copy)]
struct Side {
    first: u64,
    pitch: u64,
    slice: u64,
}

/// One side of a `CUDA_MEMCPY3D`, without the position.
struct Place {
    kind: u32,
    host: u64,
    device: u64,
    array: usize,
    pitch: u64,
    height: u64,
}

impl Place {
    /// `CUmemorytype`: 1 host, 2 device, 3 array, 4 unified.
    fn side(&self, state: &State, x: u64, y: u64, z: u64) -> Result<Side, Code> {
        let (base, pitch, height) = match self.kind {
            1 => (self.host, self.pitch, self.height),
            2 | 4 => (self.device, self.pitch, self.height),
            3 => arrays::layout(state, self.array)?,
            _ => return Err(Code::INVALID_VALUE),
        };
        let slice = pitch * height;
        Ok(Side { first: base + x + y * pitch + z * slice, pitch, slice })
    }
}

/// `CUDA_MEMCPY3D` and, with the same layout, `CUDA_MEMCPY3D_PEER` (200 bytes each).
#[repr(C)]
pub struct Copy3d {
    from_x: u64,
    from_y: u64,
    from_z: u64,
    from_lod: u64,
    from_kind: u32,
    from_host: u64,
    from_device: u64,
    from_array: usize,
    from_context: usize,
    from_pitch: u64,
    from_height: u64,
    to_x: u64,
    to_y: u64,
    to_z: u64,
    to_lod: u64,
    to_kind: u32,
    to_host: u64,
    to_device: u64,
    to_array: usize,
    to_context: usize,
    to_pitch: u64,
    to_height: u64,
    width: u64,
    height: u64,
    depth: u64,
}

/// `CUDA_MEMCPY2D` (128 bytes).
#[repr(C)]
pub struct Copy2d {
    from_x: u64,
    from_y: u64,
    from_kind: u32,
    from_host: u64,
    from_device: u64,
    from_array: usize,
    from_pitch: u64,
    to_x: u64,
    to_y: u64,
    to_kind: u32,
    to_host: u64,
    to_device: u64,
    to_array: usize,
    to_pitch: u64,
    width: u64,
    height: u64,
}

const _: () = assert!(size_of::<Copy3d>() == 200 && size_of::<Copy2d>() == 128);

/// What a copy of a box is to an observer.
fn task_of_box(
    state: &State,
    from: &(Place, [u64; 3]),
    to: &(Place, [u64; 3]),
    extent: [u64; 3],
    order: Order,
) -> Result<Task, Code> {
    let first = |(place, [x, y, z]): &(Place, [u64; 3])| Ok(place.side(state, *x, *y, *z)?.first);
    Ok(submitted::copy(state, first(to)?, first(from)?, extent.iter().product(), order.is_async()))
}

/// # Safety
/// As for [`copy`].
unsafe fn copy_box(from: (Place, [u64; 3]), to: (Place, [u64; 3]), extent: [u64; 3], order: Order) -> Answer {
    let [width, height, depth] = extent;
    if extent.contains(&0) {
        return Ok(());
    }
    let (from, to, told) = {
        let mut state = state()?;
        let task = task_of_box(&state, &from, &to, extent, order)?;
        let now = accept(&mut state, order, Work::MEMCPY, task)?;
        let checked = |(place, [x, y, z]): (Place, [u64; 3])| {
            let side = place.side(&state, x, y, z)?;
            if height > 1 && side.pitch < width {
                return Err(Code::INVALID_VALUE);
            }
            let bytes = side.slice * (depth - 1) + side.pitch * (height - 1) + width;
            state.space.check(side.first, bytes, place.kind == 2)?;
            Ok(side)
        };
        let (from, to) = (checked(from)?, checked(to)?);
        if !now {
            return Ok(());
        }
        (from, to, done(&state, order, task))
    };
    for z in 0..depth {
        for y in 0..height {
            let source = from.first + z * from.slice + y * from.pitch;
            let target = to.first + z * to.slice + y * to.pitch;
            // SAFETY: the boxes were checked to be accessible memory of this driver, or are the caller's host memory.
            unsafe { std::ptr::copy(source as *const u8, target as *mut u8, width as usize) };
        }
    }
    submitted::tell(told);
    Ok(())
}

/// # Safety
/// `what` points to a whole descriptor; see also [`copy`].
unsafe fn copy_2d(what: *const Copy2d, order: Order) -> Answer {
    // SAFETY: the caller vouches for the pointer.
    let c = unsafe { what.as_ref() }.ok_or(Code::INVALID_VALUE)?;
    let from = Place {
        kind: c.from_kind,
        host: c.from_host,
        device: c.from_device,
        array: c.from_array,
        pitch: c.from_pitch,
        height: 0,
    };
    let to = Place {
        kind: c.to_kind,
        host: c.to_host,
        device: c.to_device,
        array: c.to_array,
        pitch: c.to_pitch,
        height: 0,
    };
    // SAFETY: the sides are those of the caller's descriptor; `copy_box` checks device ranges.
    unsafe { copy_box((from, [c.from_x, c.from_y, 0]), (to, [c.to_x, c.to_y, 0]), [c.width, c.height, 1], order) }
}

/// # Safety
/// `what` points to a whole descriptor; see also [`copy`].
unsafe fn copy_3d(what: *const Copy3d, order: Order) -> Answer {
    // SAFETY: the caller vouches for the pointer.
    let c = unsafe { what.as_ref() }.ok_or(Code::INVALID_VALUE)?;
    let from = Place {
        kind: c.from_kind,
        host: c.from_host,
        device: c.from_device,
        array: c.from_array,
        pitch: c.from_pitch,
        height: c.from_height,
    };
    let to = Place {
        kind: c.to_kind,
        host: c.to_host,
        device: c.to_device,
        array: c.to_array,
        pitch: c.to_pitch,
        height: c.to_height,
    };
    let positions = ([c.from_x, c.from_y, c.from_z], [c.to_x, c.to_y, c.to_z]);
    // SAFETY: the sides are those of the caller's descriptor; `copy_box` checks device ranges.
    unsafe { copy_box((from, positions.0), (to, positions.1), [c.width, c.height, c.depth], order) }
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

use Order::{Stream, Synchronous};

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
