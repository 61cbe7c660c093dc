//! Further hooks for a program whose memory may move: attributes of addresses, memory that must not move, and contexts.

use std::ffi::{c_int, c_uint};

use super::answers::answer_ourselves_or;
use super::hook::{driver_hook, driver_hook_table};
use interpose_base::panics;
use interpose_driver::calls::{CUDA_SUCCESS, Code};
use interpose_driver::types::{Handle, In, Out};
use interpose_driver::vmm::queries::AttributeValue;
use interpose_driver::vmm::{contexts, gate, handles, mode, queries};

/// Binds memory that multicast objects reach (NCCL's NVLS), by its handle.
///
/// The memory must not move, and the driver needs the driver's handle.
macro_rules! binds_memory {
    ($name:ident [] ($($arg:ident: $type:ty),*) { $handle:ident }) => {
        driver_hook! { $name [] ($($arg: $type),*) { |real| {
            let _pass = gate::enter();
            let program_handle = $handle;
            let bind = |$handle: u64| real($($arg),*);
            let share = |own| match bind(own) {
                CUDA_SUCCESS => Ok(()),
                code => Err(Code(code)),
            };
            let fixed = || if mode::holds_memory() { handles::fix(program_handle, MULTICAST, share) } else { None };
            answer_ourselves_or(fixed, || bind(program_handle))
        } } }
    };
}

/// Binds memory at an address that multicast objects reach.
macro_rules! binds_address {
    ($name:ident [] ($($arg:ident: $type:ty),*) { $address:expr }) => {
        driver_hook! { $name [] ($($arg: $type),*) { |real| {
            let _pass = gate::enter();
            let result = real($($arg),*);
            stays(result, $address, MULTICAST);
            result
        } } }
    };
}

/// A call that creates a context.
///
/// The details give the context's output and its device.
macro_rules! makes_context {
    ($name:ident [] ($($arg:ident: $type:ty),*) { $context:expr, $device:expr }) => {
        driver_hook! { $name [] ($($arg: $type),*) { |real| {
            let _pass = gate::enter();
            let result = real($($arg),*);
            if result == CUDA_SUCCESS {
                contexts::created($context.value(), $device);
            }
            result
        } } }
    };
}

const MULTICAST: &str = "bound to a multicast object";

driver_hook_table! {
    driver_hook[] cuPointerGetAttribute(data: Out<u8>, attribute: c_int, pointer: u64) 4000:
    cuPointerGetAttribute => { |real| {
        let _pass = gate::enter();
        let result = real(data, attribute, pointer);
        if write_attribute(data, attribute, pointer) { CUDA_SUCCESS } else { result }
    } };
    driver_hook[] cuPointerGetAttributes(count: c_uint, attributes: In<c_int>, data: In<Out<u8>>, pointer: u64) 7000:
    cuPointerGetAttributes => { |real| {
        let _pass = gate::enter();
        let result = real(count, attributes, data, pointer);
        if result == CUDA_SUCCESS {
            // SAFETY: the driver has just read that many elements of both arrays.
            let (attributes, places) = unsafe { (attributes.elements(count as usize), data.elements(count as usize)) };
            attributes.zip(places).for_each(|(attribute, place)| _ = write_attribute(place, attribute, pointer));
        }
        result
    } };
    driver_hook[] cuPointerSetAttribute(value: Handle, attribute: c_int, pointer: u64) 6000:
    cuPointerSetAttribute => { |real| {
        /// `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`, which is set before a network card registers memory.
        const SYNC_MEMOPS: c_int = 6;
        let _pass = gate::enter();
        let result = real(value, attribute, pointer);
        if attribute == SYNC_MEMOPS {
            stays(result, pointer, "registered with another device");
        }
        result
    } };
    binds_memory[] cuMulticastBindMem(
        object: u64, device: c_int, offset: usize, handle: u64, from: usize, bytes: usize, flags: u64
    ) 13010: cuMulticastBindMem_v2 => { handle };
    binds_memory[] cuMulticastBindMem(
        object: u64, offset: usize, handle: u64, from: usize, bytes: usize, flags: u64
    ) 12010: cuMulticastBindMem => { handle };
    binds_address[] cuMulticastBindAddr(
        object: u64, device: c_int, offset: usize, address: u64, bytes: usize, flags: u64
    ) 13010: cuMulticastBindAddr_v2 => { address };
    binds_address[] cuMulticastBindAddr(object: u64, offset: usize, address: u64, bytes: usize, flags: u64) 12010:
        cuMulticastBindAddr => { address };
    makes_context[] cuCtxCreate(context: Out<u64>, parameters: Handle, flags: c_uint, device: c_int) 12050:
        cuCtxCreate_v4 => { context, device };
    makes_context[] cuCtxCreate(context: Out<u64>, affinity: Handle, count: c_int, flags: c_uint, device: c_int) 11040:
        cuCtxCreate_v3 => { context, device };
    makes_context[] cuCtxCreate(context: Out<u64>, flags: c_uint, device: c_int) 3020:
        cuCtxCreate_v2 => { context, device };
}

/// Marks memory that other devices or processes reach by its address: it must not move.
fn stays(result: c_int, address: u64, why: &'static str) {
    if result == CUDA_SUCCESS && mode::holds_memory() {
        panics::catch(|| handles::fix_at(address, why));
    }
}

/// Writes the program's view of an attribute of memory that memlab backs; returns true if it did.
///
/// The attribute decides the size of `to`.
fn write_attribute(to: Out<u8>, attribute: c_int, pointer: u64) -> bool {
    if to.is_null() || !mode::holds_memory() {
        return false;
    }
    match panics::catch(|| queries::attribute(pointer, attribute)).flatten() {
        // SAFETY: the attribute is an `int`, for which the program has made room.
        Some(AttributeValue::Number(number)) => unsafe { to.of_type::<c_int>() }.set(number),
        // SAFETY: the attribute has 8 bytes, for which the program has made room.
        Some(AttributeValue::Word(word)) => unsafe { to.of_type::<u64>() }.set(word),
        None => return false,
    }
    true
}
