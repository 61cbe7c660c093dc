//! The driver's virtual memory management: physical memory, its handles and its mappings.

use std::ffi::{c_int, c_void};

use super::answers::{answer_ourselves_or, answer_with_movable};
use super::driver_memory;
use super::hook::{driver_hook, driver_hook_table};
use crate::limit;
use crate::limit::in_flight::InFlight;
use crate::memory_calls::MemoryCall;
use interpose_base::panics;
use interpose_driver::calls::{CUDA_SUCCESS, Code};
use interpose_driver::types::{Access, In, Out, Properties};
use interpose_driver::vmm::{gate, handles, mode};

driver_hook_table! {
    driver_hook[4] cuMemCreate(handle: Out<u64>, bytes: usize, properties: In<Properties>, flags: u64) 10020:
    cuMemCreate => { |real, caller| {
        let _pass = gate::enter();
        let create_movable = || match (flags, properties.get()) {
            (0, Some(properties)) if !handle.is_null() => {
                handles::create(bytes as u64, &properties).map(|answer| answer.map(|made| handle.set(made)))
            }
            _ => None,
        };
        let take = || answer_with_movable(caller, create_movable, || real(handle, bytes, properties, flags));
        limit::calls::create(handle, bytes as u64, properties, flags, caller, take)
    } };
    driver_hook[3] cuMemImportFromShareableHandle(handle: Out<u64>, source: *mut c_void, kind: c_int) 10020:
    cuMemImportFromShareableHandle => { |real, caller| {
        let result = real(handle, source, kind);
        if result == CUDA_SUCCESS {
            panics::catch(|| driver_memory::imported_handle(handle.value(), caller));
        }
        result
    } };
    driver_hook[] cuMemRetainAllocationHandle(handle: Out<u64>, address: u64) 11000:
    cuMemRetainAllocationHandle => { |real| {
        let own = || match handle.is_null() {
            true => None,
            false => handles::retain(address).map(|answer| answer.map(|known| handle.set(known))),
        };
        let result = answer_ourselves_or(own, || real(handle, address));
        if result == CUDA_SUCCESS {
            panics::catch(|| driver_memory::retained(handle.value()));
        }
        result
    } };
    driver_hook[] cuMemRelease(handle: u64) 10020: cuMemRelease => { |real| {
        let _in_flight = InFlight::begin();
        let _memory_call = MemoryCall::begin();
        let released = panics::catch(|| driver_memory::releasing(handle)) == Some(true);
        let result = answer_ourselves_or(|| handles::release(handle), || real(handle));
        if result != CUDA_SUCCESS && released {
            panics::catch(|| driver_memory::retained(handle));
        }
        result
    } };
    driver_hook[] cuMemMap(address: u64, bytes: usize, offset: usize, handle: u64, flags: u64) 10020:
    cuMemMap => { |real| {
        let _pass = gate::enter();
        let own = || handles::map(address, bytes as u64, offset as u64, handle, flags);
        let result = answer_ourselves_or(own, || real(address, bytes, offset, handle, flags));
        if result == CUDA_SUCCESS {
            panics::catch(|| driver_memory::mapped(address, bytes as u64, handle));
        }
        limit::spill::attempt_ended();
        result
    } };
    driver_hook[] cuMemUnmap(address: u64, bytes: usize) 10020: cuMemUnmap => { |real| {
        let _in_flight = InFlight::begin();
        let _memory_call = MemoryCall::begin();
        let result = answer_ourselves_or(|| handles::unmap(address, bytes as u64), || real(address, bytes));
        if result == CUDA_SUCCESS {
            panics::catch(|| driver_memory::unmapped(address, bytes as u64));
        }
        result
    } };
    driver_hook[] cuMemSetAccess(address: u64, bytes: usize, access: In<Access>, count: usize) 10020:
    cuMemSetAccess => { |real| {
        let _pass = gate::enter();
        let result = real(address, bytes, access, count);
        if result == CUDA_SUCCESS && mode::holds_memory() {
            // SAFETY: the driver has just read that many elements.
            let access = unsafe { access.elements(count) };
            panics::catch(|| handles::access_set(address, bytes as u64, &access.collect::<Vec<_>>()));
        }
        result
    } };
    driver_hook[] cuMemGetAllocationPropertiesFromHandle(properties: Out<Properties>, handle: u64) 10020:
    cuMemGetAllocationPropertiesFromHandle => { |real| {
        let own = || match properties.is_null() {
            true => None,
            false => handles::properties(handle).map(|answer| answer.map(|known| properties.set(known))),
        };
        answer_ourselves_or(own, || real(properties, handle))
    } };
    driver_hook[] cuMemExportToShareableHandle(shared: *mut c_void, handle: u64, kind: c_int, flags: u64) 10020:
    cuMemExportToShareableHandle => { |real| {
        let _pass = gate::enter();
        let share = |own| match real(shared, own, kind, flags) {
            CUDA_SUCCESS => Ok(()),
            code => Err(Code(code)),
        };
        let fix = || handles::fix(handle, "shared with another process", share);
        answer_ourselves_or(fix, || real(shared, handle, kind, flags))
    } };
    driver_hook[] cuMemGetHandleForAddressRange(
        shared: *mut c_void, address: u64, bytes: usize, kind: c_int, flags: u64
    ) 11070: cuMemGetHandleForAddressRange => { |real| {
        let _pass = gate::enter();
        let result = real(shared, address, bytes, kind, flags);
        if result == CUDA_SUCCESS && mode::holds_memory() {
            panics::catch(|| handles::fix_at(address, "registered with another device"));
        }
        result
    } };
}
