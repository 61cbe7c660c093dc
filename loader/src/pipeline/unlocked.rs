//! Waiting where no lock is held.

use crate::error::Result;

/// Calls what it is given, which waits for a while and says whether that was enough, until it was; in a setting in which waiting
/// is allowed: for Python, without the GIL. An error of its own ends the wait. No lock is held when it is called.
pub type Unlocked<'a> = &'a mut dyn FnMut(&mut (dyn FnMut() -> bool + Send)) -> Result<()>;

/// The [`Unlocked`] of a thread that may wait wherever it is.
///
/// # Errors
///
/// None.
pub fn no_lock_held(wait: &mut (dyn FnMut() -> bool + Send)) -> Result<()> {
    while !wait() {}
    Ok(())
}
