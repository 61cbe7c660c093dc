//! Runs the Python sources of this folder, which are embedded in the library.

use std::ffi::{CStr, c_int, c_void};
use std::ptr;

use interpose_python::api::{Api, Object};

/// A Python source of this folder, as a C string.
macro_rules! source {
    ($file:literal) => {
        match CStr::from_bytes_with_nul(concat!(include_str!($file), "\0").as_bytes()) {
            Ok(source) => source,
            Err(_) => unreachable!(),
        }
    };
}

pub(super) use source;

/// Runs before other sources, in the same namespace.
pub(super) const GUARDS_SOURCE: &CStr = source!("guards.py");

/// `Py_file_input`
const FILE_INPUT: c_int = 257;

/// Runs the sources and returns the result of the last one's function `start`; null if that is None.
///
/// # Safety
///
/// The GIL must be held, and `native` must be the module of that name.
pub(super) unsafe fn started(api: &Api, sources: &[&CStr], name: &CStr, native: Object) -> Object {
    // SAFETY: the caller holds the GIL. Objects created here live as long as the process.
    unsafe {
        let module = run_sources(api, sources, name);
        if module.is_null() {
            return ptr::null_mut();
        }
        let start = (api.PyObject_GetAttrString)(module, c"start".as_ptr());
        if start.is_null() {
            return ptr::null_mut();
        }
        let made = (api.PyObject_CallFunctionObjArgs)(start, native, ptr::null_mut::<c_void>());
        if ptr::eq(made, none(api)) { ptr::null_mut() } else { made }
    }
}

/// Python's `None`, which lives as long as the interpreter: no reference is held.
///
/// # Safety
///
/// The GIL must be held.
pub(super) unsafe fn none(api: &Api) -> Object {
    // SAFETY: the caller holds the GIL.
    unsafe {
        let none = (api.Py_BuildValue)(c"".as_ptr());
        (api.Py_DecRef)(none);
        none
    }
}

/// Creates a module with the definitions of the sources, invisible to the program.
///
/// Returns null if Python fails to create it.
///
/// # Safety
///
/// The GIL must be held.
pub(super) unsafe fn run_sources(api: &Api, sources: &[&CStr], name: &CStr) -> Object {
    // SAFETY: the caller holds the GIL.
    unsafe {
        let module = (api.PyModule_New)(name.as_ptr());
        if module.is_null() {
            return ptr::null_mut();
        }
        let globals = (api.PyModule_GetDict)(module);
        (api.PyDict_SetItemString)(globals, c"__builtins__".as_ptr(), (api.PyEval_GetBuiltins)());
        for source in sources {
            let code = (api.Py_CompileString)(source.as_ptr(), c"<memlab agent>".as_ptr(), FILE_INPUT);
            if code.is_null() {
                return ptr::null_mut();
            }
            let evaluated = (api.PyEval_EvalCode)(code, globals, globals);
            (api.Py_DecRef)(code);
            if evaluated.is_null() {
                return ptr::null_mut();
            }
            (api.Py_DecRef)(evaluated);
        }
        module
    }
}
