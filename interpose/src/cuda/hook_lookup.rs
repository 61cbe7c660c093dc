//! Finds the hooks on CUDA by symbol.

use std::ffi::c_void;

use super::get_proc_address;
use super::hook::DriverHook;
use super::hook_table::RUNTIME;

/// The active hook on this symbol of the driver's.
pub fn by_abi_name(name: &[u8]) -> Option<&'static DriverHook> {
    get_proc_address::in_force().find(|hook| hook.abi_name.as_bytes() == name)
}

/// memlab's function of this name, active or not, if it exports one: without CUDA, no other library has it.
pub fn exported(name: &[u8]) -> Option<*const c_void> {
    let of_driver = get_proc_address::all().find(|hook| hook.abi_name.as_bytes() == name).map(|hook| hook.address);
    of_driver.or_else(|| RUNTIME.iter().find(|hook| hook.name.as_bytes() == name).map(|hook| hook.address))
}

/// Symbol and function of every active hook, the runtime's included.
pub fn replacements() -> impl Iterator<Item = (&'static [u8], *const c_void)> {
    let of_driver = get_proc_address::in_force().map(|hook| (hook.abi_name.as_bytes(), hook.address));
    of_driver.chain(RUNTIME.iter().map(|hook| (hook.name.as_bytes(), hook.address)))
}
