//! The CUDA function that the program called, for runtime calls that reach the driver's hooks.

use std::cell::Cell;

/// The CUDA runtime function that a thread is in.
#[derive(Clone, Copy)]
struct Call {
    name: &'static str,
    caller: usize,
    /// True if a driver-level hook has recorded the call's allocation.
    recorded: bool,
}

thread_local! {
    static CALL: Cell<Option<Call>> = const { Cell::new(None) };
}

/// Name and caller of the outermost CUDA function that the thread is in, for the driver call `name` made from `caller`.
///
/// Marks an enclosing runtime call as recorded.
#[inline]
pub fn outermost_call(name: &'static str, caller: usize) -> (&'static str, usize) {
    CALL.with(|call| match call.get() {
        Some(outer) => {
            call.set(Some(Call { recorded: true, ..outer }));
            (outer.name, outer.caller)
        }
        None => (name, caller),
    })
}

/// Caller of the outermost CUDA function, for a driver call made from `caller`.
#[inline]
pub fn outermost_caller(caller: usize) -> usize {
    CALL.with(|call| call.get().map_or(caller, |outer| outer.caller))
}

/// Marks the thread as inside a runtime function.
pub struct RuntimeCall(());

impl RuntimeCall {
    /// Returns `None` if the thread is already inside another runtime function.
    pub fn enter(name: &'static str, caller: usize) -> Option<Self> {
        CALL.with(|call| {
            call.get().is_none().then(|| {
                call.set(Some(Call { name, caller, recorded: false }));
                Self(())
            })
        })
    }

    /// Ends the call; returns true if a driver-level hook recorded it.
    pub fn leave(self) -> bool {
        CALL.with(|call| call.take().is_some_and(|call| call.recorded))
    }
}
