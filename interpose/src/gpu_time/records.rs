//! CUPTI's buffers of activity records, and what is read of them.

use std::alloc::{Layout, alloc, dealloc};
use std::ffi::CStr;
use std::ptr;

use cupti_sys::bindings::{
    CUcontext, CUpti_Activity, CUpti_ActivityKernel9, CUpti_ActivityKind, CUpti_ActivityMemcpy5,
    CUpti_ActivityMemcpyPtoP4, CUpti_ActivityMemoryKind, CUpti_ActivityMemset4,
};

use super::launches;
use super::library::CUPTI;
use super::sums::{Done, Memory, SUMS, What};
use crate::panics;
use crate::recursion::RecursionGuard;

/// Records of some ten thousand kernels.
const BUFFER: Layout = match Layout::from_size_align(1 << 20, 8) {
    Ok(layout) => layout,
    Err(_) => unreachable!(),
};

/// CUPTI asks for a buffer.
pub unsafe extern "C" fn request(buffer: *mut *mut u8, bytes: *mut usize, most_records: *mut usize) {
    // SAFETY: the layout has a size; CUPTI's pointers are writable.
    unsafe {
        let memory = alloc(BUFFER);
        buffer.write(memory);
        bytes.write(if memory.is_null() { 0 } else { BUFFER.size() });
        most_records.write(0);
    }
}

/// CUPTI has filled a buffer.
pub unsafe extern "C" fn complete(_: CUcontext, _: u32, buffer: *mut u8, _: usize, valid_bytes: usize) {
    if buffer.is_null() {
        return;
    }
    let _guard = RecursionGuard::enter();
    panics::catch(|| {
        let Some(cupti) = CUPTI.get() else { return };
        let mut sums = SUMS.lock();
        // SAFETY: CUPTI's own buffer, with that many bytes of records.
        for record in unsafe { cupti.records(buffer, valid_bytes) } {
            // SAFETY: a record of the buffer.
            if let Some((correlation, done)) = unsafe { read(record) } {
                sums.add(launches::place(correlation), &done);
            }
        }
    });
    // SAFETY: made by `request`, with this layout.
    unsafe { dealloc(buffer, BUFFER) };
}

/// What a record says, and the id of the call that it belongs to. `None`: something else, or it has not ended.
///
/// Newer versions of CUPTI only add to the end of records, and what is read here is at their beginning.
///
/// # Safety
///
/// `record` must be a record of a buffer that CUPTI has filled.
unsafe fn read<'a>(record: *const CUpti_Activity) -> Option<(u32, Done<'a>)> {
    // SAFETY: the kind says the type; only fields are read that records of that kind have had since CUDA 11.
    unsafe {
        let (device, correlation, what, start, end, bytes) = match (*record).kind {
            CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL => {
                let kernel = record.cast::<CUpti_ActivityKernel9>();
                let name = (*kernel).name;
                let name = if name.is_null() { &b"?"[..] } else { CStr::from_ptr(name).to_bytes() };
                ((*kernel).deviceId, (*kernel).correlationId, What::Kernel(name), (*kernel).start, (*kernel).end, 0)
            }
            CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_MEMCPY => {
                let copy = record.cast::<CUpti_ActivityMemcpy5>();
                let what = What::Copy(memory((*copy).srcKind), memory((*copy).dstKind));
                ((*copy).deviceId, (*copy).correlationId, what, (*copy).start, (*copy).end, (*copy).bytes)
            }
            CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_MEMCPY2 => {
                let copy = record.cast::<CUpti_ActivityMemcpyPtoP4>();
                let what = What::Copy(Memory::Device, Memory::Peer);
                ((*copy).deviceId, (*copy).correlationId, what, (*copy).start, (*copy).end, (*copy).bytes)
            }
            CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_MEMSET => {
                let fill = ptr::read_unaligned(record.cast::<CUpti_ActivityMemset4>());
                (fill.deviceId, fill.correlationId, What::Fill, fill.start, fill.end, fill.bytes)
            }
            _ => return None,
        };
        let nanoseconds = end.checked_sub(start).filter(|_| start != 0)?;
        Some((correlation, Done { device, what, nanoseconds, bytes }))
    }
}

fn memory(kind: u8) -> Memory {
    match CUpti_ActivityMemoryKind(kind.into()) {
        CUpti_ActivityMemoryKind::CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE => Memory::Pageable,
        CUpti_ActivityMemoryKind::CUPTI_ACTIVITY_MEMORY_KIND_PINNED => Memory::Pinned,
        CUpti_ActivityMemoryKind::CUPTI_ACTIVITY_MEMORY_KIND_MANAGED
        | CUpti_ActivityMemoryKind::CUPTI_ACTIVITY_MEMORY_KIND_MANAGED_STATIC => Memory::Managed,
        _ => Memory::Device,
    }
}
