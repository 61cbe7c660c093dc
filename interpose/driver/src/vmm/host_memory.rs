//! Limits on host memory: the machine's memory, the process's control groups, and the user's limit.

use interpose_base::config::config;
use std::path::Path;

use memlab_units::available_host_memory;
use memlab_units::format::size;

/// Host memory that always stays free for the rest of the machine.
const SPARE_HOST_BYTES: u64 = 512 << 20;

/// Checks that `bytes` more of host memory are available, without taking them.
///
/// # Errors
///
/// The bound that they would exceed.
pub fn check(bytes: u64, taken: u64) -> Result<(), String> {
    if let Some(most) = config().host_max
        && taken + bytes > most
    {
        return Err(format!(
            "{} of host memory are needed, and MEMLAB_HOST_MAX allows {}: nothing was moved",
            size(taken + bytes),
            size(most)
        ));
    }
    let Some((available, whose)) = available_host_memory(Path::new("/")) else { return Ok(()) };
    if bytes.saturating_add(SPARE_HOST_BYTES) > available {
        return Err(format!(
            "{} of host memory are needed, and {whose} has {} to spare (and keeps {}): nothing was moved",
            size(bytes),
            size(available),
            size(SPARE_HOST_BYTES)
        ));
    }
    Ok(())
}
