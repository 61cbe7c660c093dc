//! Hook that PyTorch calls after every optimizer step.
//!
//! It is a [native object](super::native_object), not a function.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::data_wait;
use super::holders;
use super::native_object;
use super::stacks::each_stack;
use crate::gpu_time;
use crate::recorder::Recorder;
use interpose_base::panics;
use interpose_python::api::{Api, Object, TypeSlot};
use interpose_python::running_agent::{self, untraced};
use interpose_python::walk::MAX_DEPTH;

/// The single hook of this process and of its forked children; never freed.
static HOOK: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Returns the hook, created at the first call.
///
/// Returns null if Python fails to create it.
///
/// # Safety
///
/// The GIL must be held.
pub unsafe fn get(api: &Api) -> Object {
    let known = HOOK.load(Ordering::Acquire);
    if !known.is_null() {
        return known;
    }
    let mut slots = [
        TypeSlot { slot: native_object::CALL, function: stepped as *mut c_void },
        TypeSlot { slot: 0, function: ptr::null_mut() },
    ];
    // SAFETY: the caller holds the GIL; the function has the slot's signature.
    let hook = unsafe { native_object::make(api, c"memlab_native.StepHook", &mut slots) };
    HOOK.store(hook, Ordering::Release);
    hook
}

/// Adds the hook to a PyTorch dictionary whose values are called by a function with the code `caller`.
///
/// PyTorch raises if the dictionary changes during that, so the hook is not added while a thread runs that function. An
/// empty dictionary is safe: its iteration has already ended.
///
/// # Safety
///
/// The GIL must be held. It is not released here.
pub unsafe fn add(api: &Api, hooks: Object, key: Object, caller: Object) -> bool {
    let Some(interpreter) = Recorder::current().and_then(|recorder| recorder.python.trusted()) else { return false };
    // SAFETY: the caller holds the GIL. Numbers as keys of an OrderedDict run no Python code.
    unsafe {
        let hook = get(api);
        if hook.is_null() {
            return false;
        }
        let mut is_called = false;
        if (api.PyObject_Size)(hooks) != 0 {
            each_stack(api, interpreter, |frames| {
                // The outer frames of a very deep stack are unknown.
                is_called |= frames.len() == MAX_DEPTH || frames.iter().any(|raw| ptr::eq(raw.code, caller.cast()));
            });
        }
        !is_called && (api.PyObject_SetItem)(hooks, key, hook) == 0
    }
}

/// Handles the call `hook(optimizer, args, kwargs)`.
///
/// # Safety
///
/// Must be called by the interpreter, with the GIL and a tuple of arguments.
unsafe extern "C" fn stepped(_hook: Object, arguments: Object, _keywords: Object) -> Object {
    let Some(api) = Api::get() else { return ptr::null_mut() };
    // SAFETY: called by the interpreter, with the GIL and a tuple.
    unsafe {
        let optimizer = (api.PyTuple_GetItem)(arguments, 0);
        (api.PyErr_Clear)(); // Set if the tuple is empty; PyTorch always passes arguments.
        panics::catch(|| after_step(api, optimizer));
        if !(api.PyErr_Occurred)().is_null() {
            return ptr::null_mut(); // A signal handler of the program raised while the agent ran.
        }
        (api.Py_BuildValue)(c"".as_ptr())
    }
}

/// Handles an optimizer step on this thread.
///
/// # Safety
///
/// The GIL must be held.
unsafe fn after_step(api: &'static Api, optimizer: Object) {
    let Some(recorder) = Recorder::current() else { return };
    let thread = Recorder::enter_if_recording().map_or(0, |session| session.thread.id);
    let is_untimed = !gpu_time::includes(recorder.steps());
    gpu_time::write_waits(recorder, recorder.steps(), data_wait::take());
    gpu_time::begin_step(recorder.step(thread, is_untimed));
    if let Some(interpreter) = recorder.python.trusted() {
        // SAFETY: the caller holds the GIL, between two operations of PyTorch.
        unsafe { holders::search_if_wanted(api, recorder, interpreter) };
    }
    let agent = running_agent::get();
    if agent.is_null() || optimizer.is_null() {
        return;
    }
    // SAFETY: the caller holds the GIL; the agent is never freed.
    unsafe {
        untraced(api, || {
            let function = (api.PyObject_GetAttrString)(agent, c"after_step".as_ptr());
            if function.is_null() {
                return;
            }
            let result = (api.PyObject_CallFunctionObjArgs)(function, optimizer, ptr::null_mut::<c_void>());
            for object in [function, result] {
                if !object.is_null() {
                    (api.Py_DecRef)(object);
                }
            }
        });
    }
}
