//! The running agent, as a Python object.

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::api::{Api, Object};
use interpose_base::symbols;

/// Null before the agent was started.
///
/// The object lives as long as the process.
static AGENT: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Returns the agent; null before it was started.
///
/// It is started only after the interpreter's self-check has passed.
pub fn get() -> Object {
    AGENT.load(Ordering::Acquire)
}

pub fn set(agent: Object) {
    AGENT.store(agent, Ordering::Release);
}

/// Calls a method of the agent that takes no arguments.
///
/// # Safety
///
/// The GIL must be held.
pub unsafe fn call(api: &Api, agent: Object, method: &CStr) {
    // SAFETY: the caller holds the GIL.
    unsafe {
        let method = (api.PyObject_GetAttrString)(agent, method.as_ptr());
        if method.is_null() {
            return;
        }
        let result = (api.PyObject_CallFunctionObjArgs)(method, ptr::null_mut::<c_void>());
        for object in [method, result] {
            if !object.is_null() {
                (api.Py_DecRef)(object);
            }
        }
    }
}

/// Runs `work` hidden from debuggers, coverage and torch.compile.
///
/// # Safety
///
/// The GIL must be held.
pub unsafe fn untraced(api: &Api, work: impl FnOnce()) {
    // SAFETY: the caller holds the GIL; both functions exist from 3.11 on and take the current thread state.
    unsafe {
        let state_of = symbols::in_process(c"PyThreadState_Get");
        let (enter, leave) =
            (symbols::in_process(c"PyThreadState_EnterTracing"), symbols::in_process(c"PyThreadState_LeaveTracing"));
        let tracing = [state_of, enter, leave].iter().all(|function| !function.is_null()).then(|| {
            type OfState = unsafe extern "C" fn(Object);
            let state: unsafe extern "C" fn() -> Object = std::mem::transmute(state_of);
            (
                state(),
                std::mem::transmute::<*mut c_void, OfState>(enter),
                std::mem::transmute::<*mut c_void, OfState>(leave),
            )
        });
        if let Some((state, enter, _)) = tracing {
            enter(state);
        }
        let dynamo = pause_dynamo(api);
        work();
        if let Some((set_eval_frame, before)) = dynamo {
            let (mut kind, mut value, mut traceback) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
            (api.PyErr_Fetch)(&mut kind, &mut value, &mut traceback);
            let replaced = (api.PyObject_CallFunctionObjArgs)(set_eval_frame, before, ptr::null_mut::<c_void>());
            for object in [replaced, before, set_eval_frame] {
                if !object.is_null() {
                    (api.Py_DecRef)(object);
                }
            }
            (api.PyErr_Restore)(kind, value, traceback);
        }
        if let Some((state, _, leave)) = tracing {
            leave(state);
        }
    }
}

/// Disables torch.compile's frame evaluator, which would compile the agent's own functions.
///
/// Returns the setter and the callback to restore.
///
/// # Safety
///
/// The GIL must be held.
unsafe fn pause_dynamo(api: &Api) -> Option<(Object, Object)> {
    // SAFETY: the caller holds the GIL; module and attribute are looked up, and missing in programs that never compile.
    unsafe {
        let modules = (api.PyImport_GetModuleDict)();
        let module = (api.PyDict_GetItemString)(modules, c"torch._C._dynamo.eval_frame".as_ptr());
        if module.is_null() {
            (api.PyErr_Clear)();
            return None;
        }
        let set_eval_frame = (api.PyObject_GetAttrString)(module, c"set_eval_frame".as_ptr());
        if set_eval_frame.is_null() {
            (api.PyErr_Clear)();
            return None;
        }
        let none = (api.Py_BuildValue)(c"".as_ptr());
        let before = (api.PyObject_CallFunctionObjArgs)(set_eval_frame, none, ptr::null_mut::<c_void>());
        (api.Py_DecRef)(none);
        if before.is_null() {
            (api.PyErr_Clear)();
            (api.Py_DecRef)(set_eval_frame);
            return None;
        }
        Some((set_eval_frame, before))
    }
}
