//! All hooks on CUDA: one table per file.
//!
//! The hook on `cuGetProcAddress` reads this table, so [`get_proc_address`](super::get_proc_address) adds its rows
//! separately.

use super::allocation_hooks;
use super::capture_hooks;
use super::device_hooks;
use super::gated;
use super::hook::DriverHook;
use super::offload_hooks;
use super::read_back_hooks;
use super::runtime_hooks;
use super::vmm_hooks;
use interpose_base::config;
use interpose_driver::vmm::gate;

/// Hooks on the driver that every program needs.
const ALWAYS: [&[DriverHook]; 4] =
    [allocation_hooks::HOOKS, vmm_hooks::HOOKS, device_hooks::HOOKS, capture_hooks::HOOKS];
/// Hooks on the driver in programs whose memory may move: those started for offloading, or with memory that may spill.
const FOR_OFFLOADING: [&[DriverHook]; 2] = [gated::HOOKS, offload_hooks::HOOKS];
/// Hooks on the driver in those programs, and in programs whose read-backs are recorded.
const FOR_READ_BACKS: [&[DriverHook]; 1] = [read_back_hooks::HOOKS];
/// Hooks on the runtime.
pub const RUNTIME: &[runtime_hooks::RuntimeHook] = runtime_hooks::HOOKS;

/// The hooks on the driver that this program needs, without `cuGetProcAddress`.
pub fn in_force() -> impl Iterator<Item = &'static DriverHook> {
    let moves = gate::is_enabled();
    let for_offloading = if moves { &FOR_OFFLOADING[..] } else { &[] };
    let for_read_backs = if moves || config::notes_read_backs() { &FOR_READ_BACKS[..] } else { &[] };
    ALWAYS.iter().chain(for_offloading).chain(for_read_backs).copied().flatten()
}

/// All hooks on the driver, active or not, without `cuGetProcAddress`.
pub fn all() -> impl Iterator<Item = &'static DriverHook> {
    ALWAYS.into_iter().chain(FOR_OFFLOADING).chain(FOR_READ_BACKS).flatten()
}
