//! Calls properties and methods of classes implemented in C, without the cost of a call from Python.

use std::ffi::c_void;

use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyType;

/// A property of a class implemented in C, such as `torch.Tensor.shape`.
///
/// Ignores overrides of derived classes.
pub struct Getter {
    property: Py<PyAny>,
    get: ffi::descrgetfunc,
}

impl Getter {
    /// Finds the property.
    ///
    /// RuntimeError if the class has something else under this name.
    pub fn new(class: &Bound<PyType>, name: &str) -> PyResult<Self> {
        let property = class.getattr(name)?;
        // SAFETY: the type is alive, and the slot, if present, has this function.
        let get = unsafe {
            let slot = ffi::PyType_GetSlot(property.get_type_ptr(), ffi::Py_tp_descr_get);
            std::mem::transmute::<*mut c_void, Option<ffi::descrgetfunc>>(slot)
        };
        let get = get.ok_or_else(|| PyRuntimeError::new_err(format!("torch.Tensor.{name} is no property")))?;
        Ok(Self { property: property.unbind(), get })
    }

    /// Returns the property of an object.
    pub fn of<'py>(&self, object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        // SAFETY: all three are alive; the result is a new reference, or null with an exception set.
        unsafe {
            let value = (self.get)(self.property.as_ptr(), object.as_ptr(), object.get_type_ptr().cast());
            Bound::from_owned_ptr_or_err(object.py(), value)
        }
    }

    /// Returns true if the property of an object is true.
    pub fn is_true(&self, object: &Bound<PyAny>) -> PyResult<bool> {
        self.of(object)?.is_truthy()
    }
}

/// Calls a function with one argument, without creating a tuple.
pub fn call<'py>(function: &Bound<'py, PyAny>, argument: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let none = std::ptr::null_mut::<ffi::PyObject>();
    // SAFETY: both are alive, and null ends the arguments; the result is a new reference, or null with an exception set.
    unsafe {
        let answer = ffi::PyObject_CallFunctionObjArgs(function.as_ptr(), argument.as_ptr(), none);
        Bound::from_owned_ptr_or_err(function.py(), answer)
    }
}

/// Returns the number of references to an object.
pub fn references(object: &Bound<PyAny>) -> isize {
    // SAFETY: the object is alive.
    unsafe { ffi::Py_REFCNT(object.as_ptr()) }
}
