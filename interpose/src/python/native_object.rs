//! Objects of special types, instead of functions, that PyTorch calls.
//!
//! Debuggers, coverage and profilers see calls of Python functions and of built-in functions, but not of these objects.
//! torch.compile treats them as objects that it cannot compile, and calls them; it would compile a Python function.

use std::ffi::{CStr, c_void};
use std::ptr;

use interpose_python::api::{Api, Object, TypeSlot, TypeSpec};

/// `Py_tp_call` and `Py_tp_descr_get`: numbers of slots.
pub const CALL: i32 = 50;
pub const GET: i32 = 54;

/// Creates an object of a new type with these slots, of which the last is zero.
///
/// Returns null if Python fails to create it.
///
/// # Safety
///
/// The GIL must be held. The functions must have the signatures of their slots.
pub unsafe fn make(api: &Api, name: &'static CStr, slots: &mut [TypeSlot]) -> Object {
    /// `Py_TPFLAGS_DEFAULT`
    const DEFAULT_FLAGS: u32 = 1 << 18;
    let mut spec = TypeSpec {
        name: name.as_ptr(),
        basic_size: 0, // The size of `object`.
        item_size: 0,
        flags: DEFAULT_FLAGS,
        slots: slots.as_mut_ptr(),
    };
    // SAFETY: the caller holds the GIL; Python copies the spec's contents, except the name, which is static.
    unsafe {
        let kind = (api.PyType_FromSpec)(&mut spec);
        if kind.is_null() {
            return kind;
        }
        (api.PyObject_CallFunctionObjArgs)(kind, ptr::null_mut::<c_void>())
    }
}
