//! libcupti_floor.so: has CUPTI record kernels, copies and fills, and throws the records away. `benches/gpu_step.py --time`
//! measures what that alone costs a program: nothing that uses CUPTI's activity records can cost less.

use std::alloc::{Layout, alloc, dealloc};
use std::ffi::c_int;
use std::sync::OnceLock;

use cupti_sys::bindings::{CUcontext, CUpti_ActivityKind as Kind};
use cupti_sys::{CallError, Cupti};

/// As large as memlab's.
const BUFFER: Layout = match Layout::from_size_align(1 << 18, 8) {
    Ok(layout) => layout,
    Err(_) => unreachable!(),
};

static CUPTI: OnceLock<Cupti> = OnceLock::new();

/// Begins, in a process that has not used CUDA. Returns 0 if CUPTI records.
#[unsafe(no_mangle)]
pub extern "C" fn cupti_floor() -> c_int {
    match Cupti::load().map(|cupti| begin(CUPTI.get_or_init(|| cupti))) {
        Ok(Ok(())) => return 0,
        Ok(Err(error)) => eprintln!("cupti_floor: {error}"),
        Err(error) => eprintln!("cupti_floor: {error}"),
    }
    1
}

fn begin(cupti: &Cupti) -> Result<(), CallError> {
    // SAFETY: the callbacks are functions of this library, which is not unloaded, and meet CUPTI's requirements.
    unsafe { cupti.register_buffers(Some(request), Some(complete)) }?;
    let kinds = [
        Kind::CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
        Kind::CUPTI_ACTIVITY_KIND_MEMCPY,
        Kind::CUPTI_ACTIVITY_KIND_MEMCPY2,
        Kind::CUPTI_ACTIVITY_KIND_MEMSET,
    ];
    kinds.into_iter().try_for_each(|kind| cupti.enable(kind))
}

unsafe extern "C" fn request(buffer: *mut *mut u8, bytes: *mut usize, most_records: *mut usize) {
    // SAFETY: the layout has a size; CUPTI's pointers are writable.
    unsafe {
        buffer.write(alloc(BUFFER));
        bytes.write(if (*buffer).is_null() { 0 } else { BUFFER.size() });
        most_records.write(0);
    }
}

unsafe extern "C" fn complete(_: CUcontext, _stream: u32, buffer: *mut u8, _bytes: usize, _valid_bytes: usize) {
    if !buffer.is_null() {
        // SAFETY: made by `request`, with this layout.
        unsafe { dealloc(buffer, BUFFER) };
    }
}
