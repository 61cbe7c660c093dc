//! Driver queries about devices and their memory, and the creation and destruction of contexts.

use std::ffi::{c_int, c_uint};
use std::sync::atomic::{AtomicBool, Ordering};

use super::answers::answer_ourselves_or;
use super::driver_memory;
use super::hook::{driver_hook, driver_hook_table};
use crate::limit;
use crate::limit::in_flight::InFlight;
use crate::limit::overhead;
use crate::memory_calls::MemoryCall;
use interpose_base::panics;
use interpose_base::stderr::print_message;
use interpose_driver::calls::CUDA_SUCCESS;
use interpose_driver::device::{current_device, device_of, primary_context};
use interpose_driver::pools;
use interpose_driver::types::{Handle, Out};
use interpose_driver::vmm::{allocations, gate, mode, queries};

driver_hook_table! {
    driver_hook[] cuMemPoolDestroy(pool: Handle) 11020: cuMemPoolDestroy => { |real| {
        panics::catch(|| pools::pool_destroyed(pool as usize));
        real(pool)
    } };
    driver_hook[] cuMemGetInfo(free: Out<usize>, total: Out<usize>) 3020: cuMemGetInfo_v2 => { |real| {
        let result = real(free, total);
        if result == CUDA_SUCCESS {
            panics::catch(|| limit::calls::show_memory(free, total));
        }
        result
    } };
    driver_hook[] cuDeviceTotalMem(total: Out<usize>, device: c_int) 3020: cuDeviceTotalMem_v2 => { |real| {
        let result = real(total, device);
        if result == CUDA_SUCCESS {
            panics::catch(|| limit::calls::show_total(total, device));
        }
        result
    } };
    driver_hook[] cuMemGetAddressRange(base: Out<u64>, bytes: Out<usize>, address: u64) 3020:
    cuMemGetAddressRange_v2 => { |real| {
        let own = || queries::range(address).map(|(start, length)| {
            base.set(start);
            bytes.set(length as usize);
            Ok(())
        });
        answer_ourselves_or(own, || real(base, bytes, address))
    } };
    driver_hook[] cuIpcGetMemHandle(handle: Handle, address: u64) 4010: cuIpcGetMemHandle => { |real| {
        let result = real(handle, address);
        if result != CUDA_SUCCESS && mode::holds_memory() && panics::catch(|| queries::is_backed(address)) == Some(true) {
            static HAS_WARNED: AtomicBool = AtomicBool::new(false);
            if !HAS_WARNED.swap(true, Ordering::Relaxed) {
                print_message("memory that can be offloaded cannot be shared with another process by CUDA IPC: start the \
                     program without --offload, or pass tensors between its processes in host memory");
            }
        }
        result
    } };
    driver_hook[] cuDevicePrimaryCtxRetain(context: Out<Handle>, device: c_int) 7000:
    cuDevicePrimaryCtxRetain => { |real| {
        let before = panics::catch(|| overhead::context_coming(device)).flatten();
        let result = real(context, device);
        if result == CUDA_SUCCESS {
            panics::catch(|| overhead::context_came(device, before));
        }
        result
    } };
    driver_hook[] cuCtxEnablePeerAccess(peer: Handle, flags: c_uint) 4000: cuCtxEnablePeerAccess => { |real| {
        let _pass = gate::enter(); // It lets the peer reach mapped memory.
        let result = real(peer, flags);
        if result == CUDA_SUCCESS {
            panics::catch(|| {
                if let Some(owner) = device_of(peer as u64) {
                    allocations::peer_enabled(owner, current_device());
                }
            });
        }
        result
    } };
    driver_hook[] cuCtxDestroy(context: Handle) 4000: cuCtxDestroy_v2 => { |real| {
        destroy_context(context as u64, || real(context))
    } };
    driver_hook[] cuDevicePrimaryCtxReset(device: c_int) 11000: cuDevicePrimaryCtxReset_v2 => { |real| {
        destroy_context(primary_context(device), || real(device))
    } };
}

/// Destroys a context and forgets the memory allocated in it.
fn destroy_context(context: u64, real: impl FnOnce() -> c_int) -> c_int {
    let _in_flight = InFlight::begin();
    let _memory_call = MemoryCall::begin();
    let mut result = CUDA_SUCCESS;
    if mode::holds_memory() {
        panics::catch(|| {
            allocations::destroy_context(context, || {
                result = real();
                result == CUDA_SUCCESS
            });
        });
    } else {
        result = real();
    }
    if result == CUDA_SUCCESS {
        panics::catch(|| {
            driver_memory::context_destroyed(context);
            limit::spill::context_destroyed(context);
            overhead::context_destroyed();
        });
    }
    result
}
