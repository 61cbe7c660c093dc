//! Time in which the program waits for a batch of a DataLoader.
//!
//! `__next__` of PyTorch's iterators over a DataLoader is replaced by an object of a special type, as the step's hook is: it
//! adds no Python frame, and debuggers, profilers and torch.compile do not look into it.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use interpose_base::clock::monotonic_ns;
use interpose_python::api::{Api, Object, TypeSlot, TypeSpec};

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
    /// `Py_tp_call`, `Py_tp_descr_get`
    const CALL: i32 = 50;
    const GET: i32 = 54;
    /// `Py_TPFLAGS_DEFAULT`
    const DEFAULT_FLAGS: u32 = 1 << 18;
    if !ORIGINAL.load(Ordering::Acquire).is_null() {
        return;
    }
    let mut slots = [
        TypeSlot { slot: CALL, function: next as *mut c_void },
        TypeSlot { slot: GET, function: bind as *mut c_void },
        TypeSlot { slot: 0, function: ptr::null_mut() },
    ];
    let mut spec = TypeSpec {
        name: c"memlab_native.NextBatch".as_ptr(),
        basic_size: 0, // The size of `object`.
        item_size: 0,
        flags: DEFAULT_FLAGS,
        slots: slots.as_mut_ptr(),
    };
    // SAFETY: the caller holds the GIL; Python copies the spec's contents, except the name, which is static.
    unsafe {
        let original = (api.PyObject_GetAttrString)(class, c"__next__".as_ptr());
        let kind = (api.PyType_FromSpec)(&mut spec);
        if !original.is_null() && !kind.is_null() {
            let object = (api.PyObject_CallFunctionObjArgs)(kind, ptr::null_mut::<c_void>());
            if !object.is_null() {
                ORIGINAL.store(original, Ordering::Release);
                (api.PyObject_SetAttrString)(class, c"__next__".as_ptr(), object);
            }
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
