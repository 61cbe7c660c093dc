//! Copies of device memory to the host.
//!
//! On request, each copy is recorded with its Python line. Values that a program reads back may decide the sizes of its
//! tensors, and a simulated GPU has computed no values to read.
//!
//! The hooks are in force in programs started for offloading (they pass the gate, like those of [`gated`](super::gated)),
//! and in programs whose read-backs are recorded.

use super::hook::{driver_hook, driver_hook_table};
use crate::attribution;
use crate::recorder::Recorder;
use interpose_base::config;
use interpose_base::panics;
use interpose_driver::calls::CUDA_SUCCESS;
use interpose_driver::types::Handle;
use interpose_driver::vmm::gate;

macro_rules! reads_back {
    ($name:ident [] ($to:ident: $host:ty, $from:ident: $device:ty, $bytes:ident: $size:ty $(, $stream:ident: $handle:ty)?)
        {}) => {
        driver_hook! { $name [] ($to: $host, $from: $device, $bytes: $size $(, $stream: $handle)?) { |real| {
            let result = {
                let _pass = gate::enter();
                real($to, $from, $bytes $(, $stream)?)
            };
            if result == CUDA_SUCCESS && config::notes_read_backs() {
                note($bytes as u64);
            }
            result
        } } }
    };
}

driver_hook_table! {
    reads_back[] cuMemcpyDtoH(to: Handle, from: u64, bytes: usize) 3020: cuMemcpyDtoH_v2 / cuMemcpyDtoH_v2_ptds => {};
    reads_back[] cuMemcpyDtoHAsync(to: Handle, from: u64, bytes: usize, stream: Handle) 3020:
        cuMemcpyDtoHAsync_v2 / cuMemcpyDtoHAsync_v2_ptsz => {};
}

/// Records a copy.
///
/// Called without a memlab lock; the caller may hold any lock of the program, and the GIL.
#[cold]
fn note(bytes: u64) {
    if let Some(session) = Recorder::enter_if_recording() {
        panics::catch(|| {
            let attribution = attribution::here(session.recorder, session.thread);
            session.read_back(attribution.stack, bytes);
        });
    }
}
