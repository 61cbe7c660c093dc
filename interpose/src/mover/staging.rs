//! Checks before an operation begins: host memory is available, and only the driver writes to device memory.

use super::progress::Failure;
use interpose_driver::calls;
use interpose_driver::vmm::arena::ARENA;
use interpose_driver::vmm::host_memory;

/// Refuses an operation beside GPUDirect Storage.
///
/// It writes to device memory past the driver: a read in flight would be lost.
pub(super) fn refuse_beside_storage() -> Result<(), Failure> {
    let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let mut targets = open.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    match targets.find(|path| path.to_string_lossy().starts_with("/dev/nvidia-fs")) {
        Some(path) => Err(format!(
            "the program uses GPUDirect Storage ({}), which writes to device memory without the driver: nothing was \
             moved; use --full",
            path.display()
        )
        .into()),
        None => Ok(()),
    }
}

/// Grows the arena until `bytes` are free in it, without waiting for the memory.
///
/// `mapped` is the number of bytes in host memory outside it.
pub(super) fn begin_to_secure(bytes: u64, mapped: u64, contexts: &[u64]) -> Result<(), Failure> {
    let &context = contexts.first().ok_or("the program's CUDA context has ended: nothing to move")?;
    calls::set_context(context).map_err(|code| format!("{}: nothing was moved", calls::context_error(code)))?;
    let mut arena = ARENA.lock();
    let missing = bytes.saturating_sub(arena.free_bytes());
    if missing > 0 {
        // Memory still being pinned is not taken from the system yet.
        let unmade = arena.unmade_bytes();
        host_memory::check(missing + unmade, arena.bytes() - unmade + mapped)?;
    }
    arena.grow(bytes, context)?;
    Ok(())
}

/// Ensures that `bytes` are free in the arena and pinned.
///
/// `mapped` is as in [`begin_to_secure`].
pub(super) fn secure(bytes: u64, mapped: u64, contexts: &[u64]) -> Result<(), Failure> {
    begin_to_secure(bytes, mapped, contexts)?;
    Ok(wait_until_pinned()?)
}

/// Waits for the arena's pending memory.
///
/// After an error, the arena does not contain the memory that it could not get.
pub(super) fn wait_until_pinned() -> Result<(), String> {
    let pending = ARENA.lock().pending();
    pending.wait().inspect_err(|_| ARENA.lock().drop_failed())
}
