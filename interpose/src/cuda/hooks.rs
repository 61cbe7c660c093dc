//! The driver functions memlab observes: one row each, by ABI name and by the name and version `cuGetProcAddress` is
//! asked for.

use std::ffi::c_void;

use super::{driver, gated, resolve};
use crate::mover;

/// One observed function.
pub struct Hook {
    /// The symbol the driver exports, `_v2`, `_ptsz` and all.
    pub abi_name: &'static str,
    /// memlab's function of that ABI.
    pub address: *const c_void,
    /// Tells the hook where the real function is.
    pub learn: fn(*mut c_void),
}

// SAFETY: the address is that of a function.
unsafe impl Sync for Hook {}

impl Hook {
    pub fn learn(&self, real: *mut c_void) {
        (self.learn)(real);
    }
}

/// What `cuGetProcAddress` answers for a plain name: the ABI in force from `since` on (an older request gets an older
/// function, which memlab leaves alone), and the variant for per-thread default streams.
pub struct Entry {
    name: &'static str,
    since: i32,
    abi_name: &'static str,
    per_thread: Option<&'static str>,
}

pub const fn entry(name: &'static str, since: i32, abi_name: &'static str) -> Entry {
    Entry { name, since, abi_name, per_thread: None }
}

pub const fn stream_entry(name: &'static str, since: i32, abi_name: &'static str, per_thread: &'static str) -> Entry {
    Entry { name, since, abi_name, per_thread: Some(per_thread) }
}

/// CUDA versions (1000 × major + 10 × minor) as `cudaTypedefs.h` gives them in the names of its function types.
const ENTRIES: &[Entry] = &[
    entry("cuMemAlloc", 3020, "cuMemAlloc_v2"),
    entry("cuMemAllocPitch", 3020, "cuMemAllocPitch_v2"),
    entry("cuMemFree", 3020, "cuMemFree_v2"),
    entry("cuMemAllocManaged", 6000, "cuMemAllocManaged"),
    entry("cuMemGetInfo", 3020, "cuMemGetInfo_v2"),
    entry("cuDeviceTotalMem", 3020, "cuDeviceTotalMem_v2"),
    entry("cuMemAllocHost", 3020, "cuMemAllocHost_v2"),
    entry("cuMemHostAlloc", 2020, "cuMemHostAlloc"),
    entry("cuMemFreeHost", 2000, "cuMemFreeHost"),
    entry("cuMemHostRegister", 6050, "cuMemHostRegister_v2"),
    entry("cuMemHostUnregister", 4000, "cuMemHostUnregister"),
    stream_entry("cuMemAllocAsync", 11020, "cuMemAllocAsync", "cuMemAllocAsync_ptsz"),
    stream_entry("cuMemAllocFromPoolAsync", 11020, "cuMemAllocFromPoolAsync", "cuMemAllocFromPoolAsync_ptsz"),
    stream_entry("cuMemFreeAsync", 11020, "cuMemFreeAsync", "cuMemFreeAsync_ptsz"),
    entry("cuMemPoolImportPointer", 11020, "cuMemPoolImportPointer"),
    entry("cuMemPoolDestroy", 11020, "cuMemPoolDestroy"),
    entry("cuArrayCreate", 3020, "cuArrayCreate_v2"),
    entry("cuArray3DCreate", 3020, "cuArray3DCreate_v2"),
    entry("cuArrayDestroy", 2000, "cuArrayDestroy"),
    entry("cuMipmappedArrayCreate", 5000, "cuMipmappedArrayCreate"),
    entry("cuMipmappedArrayDestroy", 5000, "cuMipmappedArrayDestroy"),
    entry("cuImportExternalMemory", 10000, "cuImportExternalMemory"),
    entry("cuDestroyExternalMemory", 10000, "cuDestroyExternalMemory"),
    entry("cuIpcOpenMemHandle", 11000, "cuIpcOpenMemHandle_v2"),
    entry("cuIpcCloseMemHandle", 4010, "cuIpcCloseMemHandle"),
    entry("cuMemCreate", 10020, "cuMemCreate"),
    entry("cuMemRelease", 10020, "cuMemRelease"),
    entry("cuMemRetainAllocationHandle", 11000, "cuMemRetainAllocationHandle"),
    entry("cuMemImportFromShareableHandle", 10020, "cuMemImportFromShareableHandle"),
    entry("cuMemMap", 10020, "cuMemMap"),
    entry("cuMemUnmap", 10020, "cuMemUnmap"),
    entry("cuMemSetAccess", 10020, "cuMemSetAccess"),
    entry("cuMemGetAllocationPropertiesFromHandle", 10020, "cuMemGetAllocationPropertiesFromHandle"),
    entry("cuMemExportToShareableHandle", 10020, "cuMemExportToShareableHandle"),
    entry("cuMemGetHandleForAddressRange", 11070, "cuMemGetHandleForAddressRange"),
    entry("cuMemGetAddressRange", 3020, "cuMemGetAddressRange_v2"),
    entry("cuIpcGetMemHandle", 4010, "cuIpcGetMemHandle"),
    entry("cuCtxEnablePeerAccess", 4000, "cuCtxEnablePeerAccess"),
    entry("cuGraphAddMemAllocNode", 11040, "cuGraphAddMemAllocNode"),
    entry("cuGraphAddMemFreeNode", 11040, "cuGraphAddMemFreeNode"),
    entry("cuCtxDestroy", 4000, "cuCtxDestroy_v2"),
    entry("cuDevicePrimaryCtxRetain", 7000, "cuDevicePrimaryCtxRetain"),
    entry("cuDevicePrimaryCtxReset", 11000, "cuDevicePrimaryCtxReset_v2"),
    entry("cuGetProcAddress", 12000, "cuGetProcAddress_v2"),
    entry("cuGetProcAddress", 11030, "cuGetProcAddress"),
];

/// The hook for an exported symbol.
pub fn by_abi_name(name: &[u8]) -> Option<&'static Hook> {
    in_force().find(|hook| hook.abi_name.as_bytes() == name)
}

/// The hook for what `cuGetProcAddress` answers to this request.
pub fn by_request(name: &[u8], version: i32, per_thread_streams: bool) -> Option<&'static Hook> {
    let mut entries = ENTRIES.iter().chain(gated::ENTRIES);
    let entry = entries.find(|entry| entry.name.as_bytes() == name && version >= entry.since)?;
    let abi_name = match entry.per_thread {
        Some(per_thread) if per_thread_streams => per_thread,
        _ => entry.abi_name,
    };
    by_abi_name(abi_name.as_bytes())
}

/// Every driver-level hook that this program needs.
pub fn in_force() -> impl Iterator<Item = &'static Hook> {
    let gated = if mover::is_enabled() { gated::HOOKS } else { &[] };
    driver::HOOKS.iter().chain(resolve::HOOKS).chain(gated::CAPTURE_HOOKS).chain(gated)
}

/// memlab's function of this name, in force or not: where nobody else has one, there is none.
pub fn exported(name: &[u8]) -> Option<*const c_void> {
    let all = driver::HOOKS.iter().chain(resolve::HOOKS).chain(gated::CAPTURE_HOOKS).chain(gated::HOOKS);
    all.into_iter().find(|hook| hook.abi_name.as_bytes() == name).map(|hook| hook.address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_has_its_hooks_and_every_hook_can_be_asked_for() {
        let names = |entries: &[Entry]| {
            let mut names: Vec<_> =
                entries.iter().flat_map(|it| [Some(it.abi_name), it.per_thread]).flatten().collect();
            names.sort_unstable();
            names
        };
        let hooks = |hooks: &mut dyn Iterator<Item = &Hook>| {
            let mut names: Vec<_> = hooks.map(|hook| hook.abi_name).collect();
            names.sort_unstable();
            names
        };
        assert_eq!(names(ENTRIES), hooks(&mut driver::HOOKS.iter().chain(resolve::HOOKS)));
        assert_eq!(names(gated::ENTRIES), hooks(&mut gated::HOOKS.iter().chain(gated::CAPTURE_HOOKS)));
    }

    #[test]
    fn the_requested_version_decides() {
        let name = |version, per_thread| by_request(b"cuMemAlloc", version, per_thread).map(|hook| hook.abi_name);
        assert_eq!(name(2000, false), None, "the 32-bit function of CUDA 2 is left alone");
        assert_eq!(name(13000, false), Some("cuMemAlloc_v2"));
        assert_eq!(name(13000, true), Some("cuMemAlloc_v2"), "which takes no stream");
        let name = |per_thread| by_request(b"cuMemFreeAsync", 12000, per_thread).map(|hook| hook.abi_name);
        assert_eq!((name(false), name(true)), (Some("cuMemFreeAsync"), Some("cuMemFreeAsync_ptsz")));
        assert_eq!(by_request(b"cuGetProcAddress", 11030, false).map(|h| h.abi_name), Some("cuGetProcAddress"));
        assert_eq!(by_request(b"cuGetProcAddress", 12000, false).map(|h| h.abi_name), Some("cuGetProcAddress_v2"));
    }
}
