//! libcupti_floor.so: makes CUPTI record kernels, copies and fills, and throws the records away.
//!
//! `benches/gpu_step.py --time` measures the cost of that alone, the lower bound for all users of CUPTI's activity
//! records.

mod buffers;

use std::error::Error;
use std::ffi::c_int;

use cupti_sys::Cupti;
use cupti_sys::bindings::{CUcontext, CUpti_ActivityKind as Kind};

/// Bytes of a buffer for records, as in memlab.
const BUFFER: usize = 1 << 18;

/// Starts recording in a process that has not used CUDA. Returns 0 on success.
#[unsafe(no_mangle)]
pub extern "C" fn cupti_floor() -> c_int {
    match begin() {
        Ok(()) => 0,
        Err(why) => {
            eprintln!("cupti_floor: {why}");
            1
        }
    }
}

fn begin() -> Result<(), Box<dyn Error>> {
    let cupti = Cupti::load()?;
    // SAFETY: the callbacks are functions of this library, which is not unloaded, and meet CUPTI's requirements.
    unsafe { cupti.register_buffers(Some(buffers::request::<BUFFER>), Some(complete))? };
    for kind in [
        Kind::CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
        Kind::CUPTI_ACTIVITY_KIND_MEMCPY,
        Kind::CUPTI_ACTIVITY_KIND_MEMCPY2,
        Kind::CUPTI_ACTIVITY_KIND_MEMSET,
    ] {
        cupti.enable(kind)?;
    }
    Ok(())
}

unsafe extern "C" fn complete(_: CUcontext, _stream: u32, buffer: *mut u8, _bytes: usize, _valid_bytes: usize) {
    // SAFETY: CUPTI returns a buffer from `request`, and no longer uses it.
    unsafe { buffers::free(buffer) };
}
