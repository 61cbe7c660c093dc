//! The calling thread's device, and the primary contexts that this runtime holds.

use std::cell::Cell;
use std::sync::{Mutex, PoisonError};

use crate::code::{Answer, Error};
use crate::driver_calls::Driver;

thread_local! {
    /// The thread's device (`cudaSetDevice`).
    static DEVICE: Cell<i32> = const { Cell::new(0) };
    /// True once the thread's context has been made current.
    static BOUND: Cell<bool> = const { Cell::new(false) };
}

/// Primary contexts that this runtime has retained, by device.
static CONTEXTS: Mutex<Vec<(i32, usize)>> = Mutex::new(Vec::new());

/// Returns a device's primary context, retained on first use.
pub fn context(cu: &Driver, device: i32) -> Result<usize, Error> {
    let mut contexts = CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, context)) = contexts.iter().find(|(known, _)| *known == device) {
        return Ok(*context);
    }
    let mut context = 0;
    // SAFETY: the answer goes to a local.
    unsafe { cu.cuDevicePrimaryCtxRetain(&mut context, device) }?;
    contexts.push((device, context));
    Ok(context)
}

/// Makes the context of the thread's device current, unless the program made one current itself.
pub fn make_current(cu: &Driver) -> Answer {
    if BOUND.with(Cell::get) {
        return Ok(());
    }
    let mut current = 0;
    // SAFETY: the answer goes to a local.
    unsafe { cu.cuCtxGetCurrent(&mut current) }?;
    if current == 0 {
        set(cu, DEVICE.with(Cell::get))?;
    }
    BOUND.with(|bound| bound.set(true));
    Ok(())
}

/// Makes the context of a device current.
pub fn set(cu: &Driver, device: i32) -> Answer {
    let context = context(cu, device)?;
    // SAFETY: the context is retained.
    unsafe { cu.cuCtxSetCurrent(context) }?;
    DEVICE.with(|own| own.set(device));
    BOUND.with(|bound| bound.set(true));
    Ok(())
}

/// Returns the thread's device.
pub fn current() -> i32 {
    DEVICE.with(Cell::get)
}

/// Forgets the context of a device that was reset.
pub fn forget(device: i32) {
    CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner).retain(|(known, _)| *known != device);
    BOUND.with(|bound| bound.set(false));
}
