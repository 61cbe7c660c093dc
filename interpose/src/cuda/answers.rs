//! Which of the program's calls memlab answers itself.

use std::ffi::c_int;

use super::calls::Code;
use super::driver_memory::library_at;
use crate::panics;
use crate::vmm::mode;

/// Answers a call by memlab's own virtual memory management if that has memory of the program's and `own` finds that the
/// call is about it; else lets the driver answer.
pub fn instead(own: impl FnOnce() -> Option<Result<(), Code>>, real: impl FnOnce() -> c_int) -> c_int {
    let answer = if mode::holds_memory() { panics::catch(own).flatten() } else { None };
    answer.map_or_else(real, Code::of)
}

/// The same for a call that takes memory: only if the program was started for offloading. What NCCL takes stays the
/// driver's, because NCCL shares it with other processes and with network cards.
pub fn backed(caller: usize, own: impl FnOnce() -> Option<Result<(), Code>>, real: impl FnOnce() -> c_int) -> c_int {
    let is_movable = || panics::catch(|| !library_at(caller).starts_with("libnccl")) == Some(true);
    if mode::is_enabled() && is_movable() { instead(own, real) } else { real() }
}
