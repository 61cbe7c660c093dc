//! Finding on JAX's pool. XLA reserves three quarters of the card at its first operation, and serves all arrays from
//! it.

use memlab_trace::{DeviceView, Model};
use memlab_units::format::size;

use super::finding::{Finding, Kind, on};
use super::words::Words;

/// Reports a pool from a quarter of the device.
const MIN_POOL_DIVISOR: u64 = 4;

/// Finding on the pool that XLA reserves at its first operation, if it is a large part of the device.
pub(super) fn jax_pool(model: &Model, device: &DeviceView, several: bool) -> Option<Finding> {
    // XLA is in `xla_cuda_plugin.so` or `xla_extension.so`. It frees the pool when the program ends.
    let peaks = model.driver_peaks(device.index).into_iter();
    let bytes = peaks.filter(|(library, _)| library.starts_with("xla_")).map(|(_, bytes)| bytes).max().unwrap_or(0);
    let is_pool = device.total_bytes > 0 && bytes >= device.total_bytes / MIN_POOL_DIVISOR;
    is_pool.then(|| Finding {
        kind: Kind::JaxPool,
        device: device.index,
        line: None,
        bytes,
        short: Words::strong(Kind::JaxPool.title()).and(format!("{}: {}", on(device, several), size(bytes))),
        what: Words::strong(Kind::JaxPool.title()).and(format!(
            "{}: JAX reserves {}, regardless of its arrays: by default three quarters of the card at its first operation.",
            on(device, several),
            size(bytes),
        )),
        next: "Set XLA_PYTHON_CLIENT_PREALLOCATE=false to allocate on demand, or XLA_PYTHON_CLIENT_MEM_FRACTION=.25 to \
               reserve a quarter of the card. jax.profiler.save_device_memory_profile records the memory of each line."
            .to_owned(),
        holders: Vec::new(),
    })
}
