//! Which CUDA function the program has called, when the runtime's calls end in the driver's.

use std::cell::Cell;

/// The CUDA runtime function that a thread is in.
#[derive(Clone, Copy)]
struct Call {
    name: &'static str,
    caller: usize,
    /// A driver-level hook has recorded its allocation.
    recorded: bool,
}

thread_local! {
    static CALL: Cell<Option<Call>> = const { Cell::new(None) };
}

/// Name and caller of the outermost CUDA function the thread is in, for the driver call `name` made from `caller`.
/// The runtime call, if there is one, counts as recorded from here on.
pub fn outermost_call(name: &'static str, caller: usize) -> (&'static str, usize) {
    CALL.with(|call| match call.get() {
        Some(outer) => {
            call.set(Some(Call { recorded: true, ..outer }));
            (outer.name, outer.caller)
        }
        None => (name, caller),
    })
}

/// The caller of that function, for a driver call made from `caller`.
pub fn outermost_caller(caller: usize) -> usize {
    CALL.with(|call| call.get().map_or(caller, |outer| outer.caller))
}

/// A thread's stay inside a runtime function.
pub struct RuntimeCall(());

impl RuntimeCall {
    /// `None` if the thread is inside another already.
    pub fn enter(name: &'static str, caller: usize) -> Option<Self> {
        CALL.with(|call| {
            call.get().is_none().then(|| {
                call.set(Some(Call { name, caller, recorded: false }));
                Self(())
            })
        })
    }

    /// Ends it; says whether a driver-level hook recorded the call.
    pub fn leave(self) -> bool {
        CALL.with(|call| call.take().is_some_and(|call| call.recorded))
    }
}
