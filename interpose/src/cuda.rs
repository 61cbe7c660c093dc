//! Hooks on CUDA's allocation calls.
//!
//! The hooks at driver level record allocations, because every runtime reaches the driver. The hooks on the runtime's
//! functions only supply the call's name, and record allocations that no driver-level hook has seen.

pub mod allocation_hooks;
pub mod answers;
pub mod capture_hooks;
pub mod device_hooks;
pub mod dlsym;
pub mod driver_memory;
pub mod gated;
pub mod get_proc_address;
pub mod graph_captures;
pub mod hook;
pub mod hook_lookup;
pub mod hook_table;
pub mod offload_hooks;
pub mod read_back_hooks;
pub mod runtime_hooks;
pub mod vmm_hooks;
