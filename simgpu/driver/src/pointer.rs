//! Pointer attributes.

use crate::api::{answer, api};
use crate::code::{Answer, Code};
use crate::space::{Block, Kind};
use crate::state::{DriverState, state};

// CUmemorytype
const HOST: i32 = 1;
const DEVICE: i32 = 2;

/// Writes one attribute (numbers of `CUpointer_attribute`).
///
/// # Safety
/// `to` has room for the attribute's type.
unsafe fn attribute(state: &DriverState, to: *mut u8, which: i32, address: u64) -> Answer {
    let block = state.space.find(address).ok_or(Code::INVALID_VALUE)?;
    let Block { base, size, kind, device, context, id, .. } = *block;
    let managed = kind == Kind::Managed;
    let mapped = matches!(kind, Kind::Mapped { .. });
    // SAFETY: the caller vouches for room of the documented type.
    unsafe {
        match which {
            1 if mapped => answer(to.cast::<usize>(), 0),
            1 => answer(to.cast(), context),
            2 => answer(to.cast(), if block.is_host() { HOST } else { DEVICE }),
            3 => answer(to.cast(), address),
            4 if block.is_host() || managed => answer(to.cast(), address),
            4 => Err(Code::INVALID_VALUE),
            6 | 13 if which == 13 => answer(to.cast(), 1i32),
            6 => answer(to.cast(), 0i32),
            7 | 20 => answer(to.cast(), id),
            8 => answer(to.cast(), u8::from(managed)),
            9 => answer(to.cast(), device as i32),
            10 => answer(to.cast(), i32::from(kind == Kind::Device)),
            11 | 19 => answer(to.cast(), base),
            12 | 18 => answer(to.cast(), size),
            14 => answer(to.cast(), u64::from(mapped)),
            15 => answer(to.cast(), 0i32),
            16 => answer(to.cast(), if block.is_accessible() { 3i32 } else { 0 }),
            17 => answer(to.cast(), if let Kind::Pool(pool) = kind { pool } else { 0 }),
            21 => answer(to.cast(), 0i32),
            _ => Err(Code::INVALID_VALUE),
        }
    }
}

/// Returns the size of an attribute's type, to write zeros for an address outside CUDA.
fn size_of_attribute(which: i32) -> usize {
    match which {
        1 | 3 | 4 | 7 | 11 | 12 | 14 | 17..=20 => 8,
        8 => 1,
        _ => 4,
    }
}

api! {
    fn cuPointerGetAttribute(to: *mut u8, which: i32, address: u64) {
        attribute(&*state()?, to, which, address)?;
    }

    fn cuPointerGetAttributes(count: u32, which: *const i32, to: *const *mut u8, address: u64) {
        // As documented, an address outside CUDA is not an error: every answer is zero.
        let state = state()?;
        let known = state.space.find(address).is_some();
        for index in 0..count as usize {
            let (to, which) = (*to.add(index), *which.add(index));
            if known && attribute(&state, to, which, address).is_ok() {
                continue;
            }
            to.write_bytes(0, size_of_attribute(which));
            if which == 9 {
                answer(to.cast(), -2i32)?; // CU_DEVICE_INVALID
            }
        }
    }

    fn cuPointerSetAttribute(_value: *const u8, _which: i32, address: u64) {
        state()?.space.find(address).ok_or(Code::INVALID_VALUE)?;
    }

    fn cuMemRangeGetAttribute(to: *mut u8, size: usize, _which: i32, _address: u64, _count: usize) {
        to.write_bytes(0, size);
    }
}
