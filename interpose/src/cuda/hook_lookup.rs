//! Finds the hooks on CUDA by symbol.

use std::ffi::c_void;

use super::get_proc_address;
use super::hook::DriverHook;
use super::hook_table::RUNTIME;

/// Returns the active hook on this driver symbol.
pub fn by_abi_name(name: &[u8]) -> Option<&'static DriverHook> {
    get_proc_address::in_force().find(|hook| hook.abi_name.as_bytes() == name)
}

/// Returns memlab's function of this name, active or not, if it exports one.
///
/// Without CUDA, no other library has it.
pub fn exported(name: &[u8]) -> Option<*const c_void> {
    let of_driver = get_proc_address::all().find(|hook| hook.abi_name.as_bytes() == name).map(|hook| hook.address);
    of_driver.or_else(|| RUNTIME.iter().find(|hook| hook.name.as_bytes() == name).map(|hook| hook.address))
}

/// Symbol and function of every active hook, including those on the runtime.
pub fn replacements() -> impl Iterator<Item = (&'static [u8], *const c_void)> {
    let of_driver = get_proc_address::in_force().map(|hook| (hook.abi_name.as_bytes(), hook.address));
    of_driver.chain(RUNTIME.iter().map(|hook| (hook.name.as_bytes(), hook.address)))
}
