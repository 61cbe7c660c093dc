//! Waits without holding a lock.

use crate::error::Result;

/// Calls the given function repeatedly until it returns true, in a context that allows waiting; for Python, without the GIL.
///
/// The function waits for a while and returns true if the wait is over. An error of the caller ends the wait. No lock is
/// held during the call.
pub type Unlocked<'a> = &'a mut dyn FnMut(&mut (dyn FnMut() -> bool + Send)) -> Result<()>;

/// The [`Unlocked`] of a thread that holds no lock and may wait anywhere.
///
/// # Errors
///
/// None.
pub fn no_lock_held(wait: &mut (dyn FnMut() -> bool + Send)) -> Result<()> {
    while !wait() {}
    Ok(())
}
