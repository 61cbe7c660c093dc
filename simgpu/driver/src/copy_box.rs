//! Copies two- and three-dimensional pieces of memory, at the time of the call.

use simgpu_observer::Task;

use crate::arrays;
use crate::code::{Answer, Code};
use crate::objects::Work;
use crate::order::{Order, accept, done};
use crate::state::{DriverState, state};
use crate::submitted;
use crate::written;

/// One side of a two- or three-dimensional copy: address of the first byte, and distances of rows and slices.
#[derive(Clone, Copy)]
struct Side {
    first: u64,
    pitch: u64,
    slice: u64,
}

/// One side of a `CUDA_MEMCPY3D`, without the position.
struct CopySide {
    kind: u32,
    host: u64,
    device: u64,
    array: usize,
    pitch: u64,
    height: u64,
}

impl CopySide {
    /// `CUmemorytype`: 1 host, 2 device, 3 array, 4 unified.
    fn side(&self, state: &DriverState, x: u64, y: u64, z: u64) -> Result<Side, Code> {
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

/// Describes the copy of a box to an observer.
fn task_of_box(
    state: &DriverState,
    from: &(CopySide, [u64; 3]),
    to: &(CopySide, [u64; 3]),
    extent: [u64; 3],
    order: Order,
) -> Result<Task, Code> {
    let first = |(place, [x, y, z]): &(CopySide, [u64; 3])| Ok(place.side(state, *x, *y, *z)?.first);
    Ok(submitted::copy(state, first(to)?, first(from)?, extent.iter().product(), order.is_async()))
}

/// # Safety
/// Addresses that are not this driver's memory are host memory that the caller vouches for.
unsafe fn copy_box(from: (CopySide, [u64; 3]), to: (CopySide, [u64; 3]), extent: [u64; 3], order: Order) -> Answer {
    let [width, height, depth] = extent;
    if extent.contains(&0) {
        return Ok(());
    }
    let (from, to, submitted_work) = {
        let mut state = state()?;
        let task = task_of_box(&state, &from, &to, extent, order)?;
        let now = accept(&mut state, order, Work::MEMCPY, task)?;
        let checked = |(place, [x, y, z]): (CopySide, [u64; 3])| {
            let side = place.side(&state, x, y, z)?;
            if height > 1 && side.pitch < width {
                return Err(Code::INVALID_VALUE);
            }
            let bytes = side.slice * (depth - 1) + side.pitch * (height - 1) + width;
            state.space.check(side.first, bytes, place.kind == 2)?;
            Ok(side)
        };
        let is_to_device = to.0.kind == 2;
        let (from, to) = (checked(from)?, checked(to)?);
        if !now {
            return Ok(());
        }
        if is_to_device {
            written::note(to.first, to.slice * (depth - 1) + to.pitch * (height - 1) + width);
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
    submitted::notify(submitted_work);
    Ok(())
}

/// # Safety
/// `what` points to a whole descriptor; see also [`copy_box`].
pub unsafe fn copy_2d(what: *const Copy2d, order: Order) -> Answer {
    // SAFETY: the caller vouches for the pointer.
    let c = unsafe { what.as_ref() }.ok_or(Code::INVALID_VALUE)?;
    let from = CopySide {
        kind: c.from_kind,
        host: c.from_host,
        device: c.from_device,
        array: c.from_array,
        pitch: c.from_pitch,
        height: 0,
    };
    let to = CopySide {
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
/// `what` points to a whole descriptor; see also [`copy_box`].
pub unsafe fn copy_3d(what: *const Copy3d, order: Order) -> Answer {
    // SAFETY: the caller vouches for the pointer.
    let c = unsafe { what.as_ref() }.ok_or(Code::INVALID_VALUE)?;
    let from = CopySide {
        kind: c.from_kind,
        host: c.from_host,
        device: c.from_device,
        array: c.from_array,
        pitch: c.from_pitch,
        height: c.from_height,
    };
    let to = CopySide {
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
