//! The program's CUDA contexts.

use parking_lot::Mutex;

use crate::calls;
use crate::device::primary_context;
use interpose_base::locks;

/// Contexts that the program has created besides the devices' primary ones, and their devices.
static CREATED: Mutex<Vec<(u64, i32)>> = Mutex::new(Vec::new());

pub fn created(context: u64, device: i32) {
    CREATED.lock().push((context, device));
}

pub fn destroyed(context: u64) {
    CREATED.lock().retain(|&(known, _)| known != context);
}

/// All contexts in use.
pub fn all() -> Vec<u64> {
    let primary = (0..calls::device_count()).map(primary_context).filter(|&context| context != 0);
    primary.chain(CREATED.lock().iter().map(|&(context, _)| context)).collect()
}

/// A context for copies to and from a device; 0 if none exists.
pub fn of_device(device: i32) -> u64 {
    match primary_context(device) {
        0 => CREATED.lock().iter().find(|&&(_, owner)| owner == device).map_or(0, |&(context, _)| context),
        primary => primary,
    }
}

pub fn reset_in_child() {
    locks::reset_in_child(&CREATED, Vec::new());
}
