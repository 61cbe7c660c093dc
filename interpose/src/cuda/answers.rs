//! Decides which of the program's calls memlab answers in place of the driver.

use std::ffi::c_int;

use super::driver_memory::library_at;
use interpose_base::panics;
use interpose_driver::calls::Code;
use interpose_driver::vmm::mode;

/// Answers a call from memlab's virtual memory management if that holds memory of the program and `answer` recognises the
/// argument; otherwise calls the driver.
pub fn answer_ourselves_or(answer: impl FnOnce() -> Option<Result<(), Code>>, real: impl FnOnce() -> c_int) -> c_int {
    let answer = if mode::holds_memory() { panics::catch(answer).flatten() } else { None };
    answer.map_or_else(real, Code::of)
}

/// Answers a call that allocates memory, only if the program was started for offloading.
///
/// NCCL's memory stays the driver's, because NCCL shares it with other processes and with network cards.
pub fn answer_with_movable(
    caller: usize,
    allocate: impl FnOnce() -> Option<Result<(), Code>>,
    real: impl FnOnce() -> c_int,
) -> c_int {
    let is_movable = || panics::catch(|| !library_at(caller).starts_with("libnccl")) == Some(true);
    if mode::is_enabled() && is_movable() { answer_ourselves_or(allocate, real) } else { real() }
}
