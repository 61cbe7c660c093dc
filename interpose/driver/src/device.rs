//! Queries about devices and contexts, made inside hooks.

use super::calls::{self, Current};
use memlab_protocol::request::MAX_DEVICES;

/// The current context's device; 0 without a context, as in the runtime.
pub fn current_device() -> i32 {
    calls::current_device().unwrap_or(0)
}

/// The device of a context.
pub fn device_of(context: u64) -> Option<i32> {
    let _current = Current::switch(context).ok()?;
    calls::current_device().ok()
}

/// The device's primary context, if it is in use; otherwise 0.
pub fn primary_context(device: i32) -> u64 {
    if calls::primary_is_active(device) != Ok(true) {
        return 0;
    }
    // Retaining an active context does not change it, and is undone at once.
    match calls::retain_primary(device) {
        Ok(context) => {
            calls::release_primary(device);
            context
        }
        Err(_) => 0,
    }
}

/// Returns true if the process uses a device: if a primary context is active.
pub fn is_in_use() -> bool {
    // The driver returns an error if it is not initialised or has no such device.
    (0..MAX_DEVICES as i32).map_while(|device| calls::primary_is_active(device).ok()).any(|active| active)
}

/// Bytes of the allocation that contains `address`; 0 if the driver does not know it.
pub fn range_bytes(address: u64) -> u64 {
    calls::address_range(address).map_or(0, |(_, bytes)| bytes)
}

pub struct DeviceFacts {
    pub name: String,
    pub total_bytes: u64,
    pub bus_id: Option<String>,
}

pub fn device_facts(device: i32) -> DeviceFacts {
    DeviceFacts {
        name: calls::device_name(device).unwrap_or_else(|_| "GPU".into()),
        total_bytes: calls::device_memory(device).unwrap_or(0),
        bus_id: calls::device_bus_id(device).ok(),
    }
}
