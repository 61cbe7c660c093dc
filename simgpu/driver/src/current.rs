//! The calling thread's current context.

use std::cell::RefCell;

use crate::code::Code;
use crate::state::DriverState;

thread_local! {
    /// The calling thread's contexts, the current one last.
    static STACK: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Calls `body` with the contexts of the calling thread.
pub fn on_stack<R>(body: impl FnOnce(&mut Vec<usize>) -> R) -> Result<R, Code> {
    STACK.try_with(|stack| body(&mut stack.borrow_mut())).map_err(|_| Code::INVALID_CONTEXT)
}

/// Returns the current context's handle; 0 without one.
pub fn current_handle() -> usize {
    on_stack(|stack| stack.last().copied()).ok().flatten().unwrap_or(0)
}

/// Returns the current context's handle; `CUDA_ERROR_INVALID_CONTEXT` without one.
pub fn current(state: &DriverState) -> Result<usize, Code> {
    match current_handle() {
        0 => Err(Code::INVALID_CONTEXT),
        handle if state.contexts.contains_key(&handle) => Ok(handle),
        _ => Err(Code::CONTEXT_IS_DESTROYED),
    }
}

/// Returns the current context's handle and device.
pub fn current_device(state: &DriverState) -> Result<(usize, usize), Code> {
    let context = current(state)?;
    Ok((context, state.contexts[&context].device))
}
