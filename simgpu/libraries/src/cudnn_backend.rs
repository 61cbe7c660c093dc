//! cuDNN's backend (graph) API.
//!
//! The installed cuDNN plans if it can do so without a device. Executing a plan launches one kernel that does nothing.

mod planned;
mod simulated;

use crate::cudnn_planner::planner;
use crate::cudnn_stream;
use simgpu_support::api::{SUCCESS, api};
use simgpu_support::kernels::kernel_name;

api! {
    fn cudnnBackendCreateDescriptor(kind: i32, to: *mut usize) {
        planner().map_or_else(|| simulated::create(to), |planner| planned::create(planner, kind, to))
    }

    fn cudnnBackendInitialize(_descriptor: usize) {
        SUCCESS
    }

    fn cudnnBackendDestroyDescriptor(descriptor: usize) {
        planner().map_or_else(|| simulated::destroy(descriptor), |planner| planned::destroy(planner, descriptor))
    }

    fn cudnnBackendFinalize(descriptor: usize) {
        planner().map_or_else(|| simulated::finalize(descriptor), |planner| planned::finalize(planner, descriptor))
    }

    fn cudnnBackendSetAttribute(descriptor: usize, attribute: i32, kind: i32, count: i64, elements: *const u8) {
        match planner() {
            Some(planner) => planned::set(planner, descriptor, attribute, kind, count, elements),
            None => simulated::set(descriptor, attribute, kind, count, elements),
        }
    }

    fn cudnnBackendGetAttribute(
        descriptor: usize, attribute: i32, kind: i32, room: i64, count: *mut i64, elements: *mut u8,
    ) {
        match planner() {
            Some(planner) => planned::get(planner, descriptor, attribute, kind, room, count, elements),
            None => simulated::get(descriptor, attribute, kind, room, count, elements),
        }
    }

    fn cudnnBackendExecute(handle: usize, plan: usize, _variants: usize) {
        cudnn_stream::launch(handle, kernel_name!(cudnnBackendExecute), planned::arithmetic(plan))
    }
}
