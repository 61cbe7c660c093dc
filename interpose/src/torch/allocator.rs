//! PyTorch's caching allocator: every block allocated and freed, and every out-of-memory error.

use std::ffi::c_void;

use memlab_trace::record::Flags;

use super::hook::TorchHook;
use crate::attribution;
use crate::growth;
use crate::limit::card;
use crate::recorder::Recorder;
use interpose_base::panics;
use interpose_base::symbols::Real;

/// `c10::Device`, passed by value in one register: the type in the lowest byte, the index in the next.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct TorchDevice(u16);

impl TorchDevice {
    const CUDA: u8 = 1;

    /// CUDA ordinal, if it is a CUDA device.
    fn cuda(self) -> Option<i32> {
        let [kind, index] = self.0.to_le_bytes();
        (kind == Self::CUDA).then_some(i32::from(index as i8))
    }
}

type ReportMemoryUsage = unsafe extern "C-unwind" fn(*mut c_void, i64, usize, usize, TorchDevice);
type ReportOutOfMemory = unsafe extern "C-unwind" fn(i64, usize, usize, TorchDevice);

static REAL_USAGE: Real<ReportMemoryUsage> =
    Real::hooked_or_in_library(c"libc10.so", c"_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE");
static REAL_OUT_OF_MEMORY: Real<ReportOutOfMemory> =
    Real::in_library(c"libc10.so", c"_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE");

/// Hook for `c10::reportMemoryUsageToProfiler`: PyTorch's caching allocator allocates (`size` > 0) or frees (`size` < 0) a
/// block.
///
/// Called by libc10_cuda with the allocator's mutex held and the GIL usually not held. Must not wait for Python or call back
/// into PyTorch's allocator.
///
/// # Safety
///
/// Must be called as PyTorch calls its function.
#[unsafe(export_name = "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE")]
pub unsafe extern "C-unwind" fn report_memory_usage(
    block: *mut c_void,
    size: i64,
    allocated: usize,
    reserved: usize,
    device: TorchDevice,
) {
    // A forked child may free a block that its parent allocated. That does not use the card, and starts no trace.
    let enter = if size < 0 { Recorder::enter_if_recording } else { Recorder::enter };
    if let Some(index) = device.cuda()
        && let Some(session) = enter()
    {
        card::allocator_keeps(index, reserved.saturating_sub(allocated) as u64);
        panics::catch(|| {
            if size >= 0 {
                let attribution = attribution::here(session.recorder, session.thread);
                session.block_allocated(attribution, index, block as u64, size as u64);
                let phase = Flags(attribution.flags).phase();
                growth::note_allocated(session.recorder, index, size as u64, allocated as u64, phase);
            } else {
                session.block_freed(index, block as u64);
                growth::note_freed(session.recorder, index, allocated as u64);
            }
        });
    }
    if let Some(real) = REAL_USAGE.get() {
        // SAFETY: PyTorch's function with the arguments it was called with.
        unsafe { real(block, size, allocated, reserved, device) };
    }
}

/// Hook for `c10::reportOutOfMemoryToProfiler`: PyTorch's caching allocator is about to raise `OutOfMemoryError`.
///
/// The same locks are held as for [`report_memory_usage`].
///
/// # Safety
///
/// Must be called as PyTorch calls its function.
#[unsafe(export_name = "_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE")]
pub unsafe extern "C-unwind" fn report_out_of_memory(
    requested: i64,
    allocated: usize,
    reserved: usize,
    device: TorchDevice,
) {
    if let Some(index) = device.cuda()
        && let Some(session) = Recorder::enter()
    {
        let requested = requested.max(0) as u64;
        panics::catch(|| {
            session.recorder.define_device(index); // This may be the first event on the device.
            let attribution = attribution::here(session.recorder, session.thread);
            session.out_of_memory(attribution, index, requested, allocated as u64, reserved as u64);
        });
    }
    if let Some(real) = REAL_OUT_OF_MEMORY.get() {
        // SAFETY: PyTorch's function with the arguments it was called with.
        unsafe { real(requested, allocated, reserved, device) };
    }
}

/// Every hook in this file.
pub fn hooks() -> Vec<TorchHook> {
    vec![
        TorchHook::always(
            c"_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE",
            c"libc10.so",
            report_memory_usage as *const c_void,
            "c10::reportMemoryUsageToProfiler",
            "memlab sees only the memory that PyTorch's allocator takes from the driver, not its blocks",
        ),
        TorchHook::always(
            c"_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE",
            c"libc10.so",
            report_out_of_memory as *const c_void,
            "c10::reportOutOfMemoryToProfiler",
            "the report does not explain out-of-memory errors",
        ),
    ]
}
