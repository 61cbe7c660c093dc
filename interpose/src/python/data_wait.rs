//! Time in which the program waits for a batch of a DataLoader.
//!
//! `__next__` of PyTorch's iterators over a DataLoader is replaced by a [native object](super::native_object), which adds no
//! Python frame.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::native_object;
use interpose_base::clock::monotonic_ns;
use interpose_python::api::{Api, Object, TypeSlot};

/// The function of PyTorch that the object calls; never freed.
static ORIGINAL: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

thread_local! {
    /// Nanoseconds waited since the thread last took them.
    static WAITED: Cell<u64> = const { Cell::new(0) };
    /// Number of running calls: a DataLoader's dataset may read another DataLoader.
    static CALLS: Cell<u32> = const { Cell::new(0) };
}

/// Returns the time in which the calling thread waited since the last call of this function.
pub fn take() -> u64 {
    WAITED.try_with(Cell::take).unwrap_or(0)
}

/// Measures the calls of the `__next__` of a class from now on. Does nothing if it is already measured.
///
/// # Safety
///
/// The GIL must be held.
pub unsafe fn measure(api: &Api, class: Object) {
    if !ORIGINAL.load(Ordering::Acquire).is_null() {
        return;
    }
    let mut slots = [
        TypeSlot { slot: native_object::CALL, function: next as *mut c_void },
        TypeSlot { slot: native_object::GET, function: bind as *mut c_void },
        TypeSlot { slot: 0, function: ptr::null_mut() },
    ];
    // SAFETY: the caller holds the GIL; the functions have the slots' signatures.
    unsafe {
        let original = (api.PyObject_GetAttrString)(class, c"__next__".as_ptr());
        let object = native_object::make(api, c"memlab_native.NextBatch", &mut slots);
        if !original.is_null() && !object.is_null() {
            ORIGINAL.store(original, Ordering::Release);
            (api.PyObject_SetAttrString)(class, c"__next__".as_ptr(), object);
        }
    }
}

/// `__get__(self, iterator, class)`
///
/// # Safety
///
/// Must be called by the interpreter, with the GIL.
unsafe extern "C" fn bind(this: Object, iterator: Object, _class: Object) -> Object {
    let Some(api) = Api::get() else { return ptr::null_mut() };
    // SAFETY: called by the interpreter, with the GIL.
    unsafe {
        if iterator.is_null() {
            (api.Py_IncRef)(this);
            return this;
        }
        (api.PyMethod_New)(this, iterator)
    }
}

/// `__call__(self, iterator)`
///
/// # Safety
///
/// Must be called by the interpreter, with the GIL and a tuple of arguments.
unsafe extern "C" fn next(_this: Object, arguments: Object, keywords: Object) -> Object {
    let Some(api) = Api::get() else { return ptr::null_mut() };
    let begun = monotonic_ns();
    let _ = CALLS.try_with(|calls| calls.set(calls.get() + 1));
    // SAFETY: called by the interpreter, with the GIL; the function is never freed.
    let batch = unsafe { (api.PyObject_Call)(ORIGINAL.load(Ordering::Acquire), arguments, keywords) };
    let is_outermost = CALLS.try_with(|calls| calls.replace(calls.get() - 1) == 1).unwrap_or(false);
    if is_outermost {
        let _ = WAITED.try_with(|waited| waited.set(waited.get() + monotonic_ns().saturating_sub(begun)));
    }
    batch
}
