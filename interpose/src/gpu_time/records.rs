//! CUPTI's buffers of activity records, and the parts that memlab reads.

use std::alloc::{Layout, alloc, dealloc};
use std::ffi::CStr;
use std::ptr;

use cupti_sys::bindings::{
    CUcontext, CUpti_Activity, CUpti_ActivityKernel9, CUpti_ActivityKind, CUpti_ActivityMemcpy5,
    CUpti_ActivityMemcpyPtoP4, CUpti_ActivityMemoryKind, CUpti_ActivityMemset4,
};
use parking_lot::Mutex;

use super::books::BOOKS;
use super::finished_work::{FinishedWork, Memory, WorkKind};
use super::launches;
use super::library::CUPTI;
use super::nodes;
use interpose_base::panics;
use interpose_base::recursion::RecursionGuard;

/// Room for records of about two thousand kernels.
///
/// CUPTI keeps a buffer back until all its kernels are done.
const BUFFER: Layout = match Layout::from_size_align(1 << 18, 8) {
    Ok(layout) => layout,
    Err(_) => unreachable!(),
};

/// Buffers that were read, for reuse: new memory would come page by page from the system.
static SPARE_BUFFERS: Mutex<Vec<EmptyBuffer>> = Mutex::new(Vec::new());

struct EmptyBuffer(*mut u8);

// SAFETY: only the thread that takes a buffer from the list has it.
unsafe impl Send for EmptyBuffer {}

/// Maximum number of spare buffers kept.
const MAX_SPARE_BUFFERS: usize = 16;

/// Gives CUPTI a buffer.
pub unsafe extern "C" fn request(buffer: *mut *mut u8, bytes: *mut usize, most_records: *mut usize) {
    let read = SPARE_BUFFERS.lock().pop();
    // SAFETY: the layout has a size; CUPTI's pointers are writable.
    unsafe {
        let memory = read.map_or_else(|| alloc(BUFFER), |EmptyBuffer(memory)| memory);
        buffer.write(memory);
        bytes.write(if memory.is_null() { 0 } else { BUFFER.size() });
        most_records.write(0);
    }
}

/// Reads a buffer that CUPTI has filled.
pub unsafe extern "C" fn complete(_: CUcontext, _: u32, buffer: *mut u8, _: usize, valid_bytes: usize) {
    if buffer.is_null() {
        return;
    }
    let _guard = RecursionGuard::enter();
    panics::catch(|| {
        let Some(cupti) = CUPTI.get() else { return };
        let mut books = BOOKS.lock();
        let books = books.get_or_insert_default();
        // SAFETY: CUPTI's buffer, with that many bytes of records.
        for record in unsafe { cupti.records(buffer, valid_bytes) } {
            // SAFETY: a record of the buffer.
            let Some((correlation, node, done)) = (unsafe { read(record) }) else { continue };
            let mut launch = launches::launch(correlation);
            launch.place = nodes::place(node).unwrap_or(launch.place);
            match done {
                Some(done) => books.add(&launch, &done),
                // The step of memlab's launches is unknown.
                None if launch.time == 0 => {}
                None => books.cut(launch.step),
            }
        }
    });
    let mut kept = SPARE_BUFFERS.lock();
    if kept.len() < MAX_SPARE_BUFFERS {
        kept.push(EmptyBuffer(buffer));
    } else {
        // SAFETY: made by `request`, with this layout.
        unsafe { dealloc(buffer, BUFFER) };
    }
}

/// Returns the id of the call that a record belongs to, the graph node of the record or 0, and the finished work, if it has
/// finished.
///
/// Returns `None` for other records.
///
/// Newer versions of CUPTI only add to the end of records, and the fields read here are at their beginning.
///
/// # Safety
///
/// `record` must be a record of a buffer that CUPTI has filled.
unsafe fn read<'a>(record: *const CUpti_Activity) -> Option<(u32, u64, Option<FinishedWork<'a>>)> {
    // SAFETY: the kind determines the type; only fields are read that records of that kind have had since CUDA 11.
    unsafe {
        let (correlation, node, end, done) = match (*record).kind {
            CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL => {
                let kernel = &*record.cast::<CUpti_ActivityKernel9>();
                let name = if kernel.name.is_null() { &b"?"[..] } else { CStr::from_ptr(kernel.name).to_bytes() };
                let done = done(kernel.deviceId, kernel.streamId, WorkKind::Kernel(name), kernel.start, 0);
                (kernel.correlationId, kernel.graphNodeId, kernel.end, done)
            }
            CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_MEMCPY => {
                let copy = &*record.cast::<CUpti_ActivityMemcpy5>();
                let what = WorkKind::Copy(memory(copy.srcKind), memory(copy.dstKind));
                let done = done(copy.deviceId, copy.streamId, what, copy.start, copy.bytes);
                (copy.correlationId, copy.graphNodeId, copy.end, done)
            }
            CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_MEMCPY2 => {
                let copy = &*record.cast::<CUpti_ActivityMemcpyPtoP4>();
                let what = WorkKind::Copy(Memory::Device, Memory::Peer);
                let done = done(copy.deviceId, copy.streamId, what, copy.start, copy.bytes);
                (copy.correlationId, copy.graphNodeId, copy.end, done)
            }
            CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_MEMSET => {
                let fill = ptr::read_unaligned(record.cast::<CUpti_ActivityMemset4>());
                let done = done(fill.deviceId, fill.streamId, WorkKind::Fill, fill.start, fill.bytes);
                (fill.correlationId, fill.graphNodeId, fill.end, done)
            }
            _ => return None,
        };
        let nanoseconds = end.checked_sub(done.start).filter(|_| done.start != 0);
        Some((correlation, node, nanoseconds.map(|nanoseconds| FinishedWork { nanoseconds, ..done })))
    }
}

/// Returns finished work without its duration.
fn done(device: u32, stream: u32, what: WorkKind<'_>, start: u64, bytes: u64) -> FinishedWork<'_> {
    FinishedWork { device, stream, what, start, nanoseconds: 0, bytes }
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
