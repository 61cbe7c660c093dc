//! The functions of Python's C-API that the agent needs, looked up in the process.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use interpose_base::symbols;

/// A `PyObject`, opaque.
pub type Object = *mut c_void;

/// `PyMethodDef`
#[repr(C)]
pub struct Method {
    pub name: *const c_char,
    pub function: unsafe extern "C" fn(Object, Object) -> Object,
    pub flags: c_int,
    pub doc: *const c_char,
}

// SAFETY: immutable static strings and functions.
unsafe impl Sync for Method {}

pub const METH_VARARGS: c_int = 1;
/// `METH_O`
pub const METH_O: c_int = 8;

/// `PyType_Slot`
#[repr(C)]
pub struct TypeSlot {
    pub slot: c_int,
    pub function: *mut c_void,
}

/// `PyType_Spec`
#[repr(C)]
pub struct TypeSpec {
    pub name: *const c_char,
    pub basic_size: c_int,
    pub item_size: c_int,
    pub flags: c_uint,
    pub slots: *mut TypeSlot,
}

/// Returns the bytes of a string from Python; an empty slice for null.
///
/// # Safety
///
/// `string` must be null or a NUL-terminated string that outlives the result.
pub unsafe fn text<'a>(string: *const c_char) -> &'a [u8] {
    // SAFETY: not null, so the caller promises a NUL-terminated string.
    if string.is_null() { b"" } else { unsafe { CStr::from_ptr(string) }.to_bytes() }
}

macro_rules! python_api {
    ($($name:ident: $type:ty;)*) => {
        /// The functions of the stable C-API that the agent needs.
        #[allow(non_snake_case)]
        pub struct Api { $(pub $name: $type),* }
        impl Api {
            /// The functions, looked up at the first call.
            pub fn get() -> Option<&'static Self> {
                static API: OnceLock<Option<Api>> = OnceLock::new();
                API.get_or_init(Self::find).as_ref()
            }

            fn find() -> Option<Self> {
                // SAFETY: each is the function of that name, with the signature of Python's headers since 3.9.
                unsafe {
                    Some(Self {$(
                        $name: {
                            let name = concat!(stringify!($name), "\0");
                            let found = symbols::in_process(CStr::from_bytes_with_nul_unchecked(name.as_bytes()));
                            if found.is_null() {
                                return None;
                            }
                            std::mem::transmute::<*mut c_void, $type>(found)
                        }
                    ),*})
                }
            }
        }
    };
}

python_api! {
    PyErr_Fetch: unsafe extern "C" fn(*mut Object, *mut Object, *mut Object);
    PyErr_Restore: unsafe extern "C" fn(Object, Object, Object);
    PyErr_CheckSignals: unsafe extern "C" fn() -> c_int;
    PyErr_Clear: unsafe extern "C" fn();
    PyErr_Occurred: unsafe extern "C" fn() -> Object;
    PyEval_GetFrame: unsafe extern "C" fn() -> Object;
    PyFrame_GetBack: unsafe extern "C" fn(Object) -> Object;
    PyFrame_GetCode: unsafe extern "C" fn(Object) -> Object;
    PyFrame_GetLineNumber: unsafe extern "C" fn(Object) -> c_int;
    PyModule_New: unsafe extern "C" fn(*const c_char) -> Object;
    PyModule_GetDict: unsafe extern "C" fn(Object) -> Object;
    PyObject_SetAttrString: unsafe extern "C" fn(Object, *const c_char, Object) -> c_int;
    PyObject_GetAttrString: unsafe extern "C" fn(Object, *const c_char) -> Object;
    PyObject_CallFunctionObjArgs: unsafe extern "C" fn(Object, ...) -> Object;
    PyCFunction_NewEx: unsafe extern "C" fn(*const Method, Object, Object) -> Object;
    PyLong_AsLongLong: unsafe extern "C" fn(Object) -> i64;
    PyLong_AsUnsignedLongLong: unsafe extern "C" fn(Object) -> u64;
    PyArg_ParseTuple: unsafe extern "C" fn(Object, *const c_char, ...) -> c_int;
    Py_CompileString: unsafe extern "C" fn(*const c_char, *const c_char, c_int) -> Object;
    PyEval_EvalCode: unsafe extern "C" fn(Object, Object, Object) -> Object;
    PyEval_GetBuiltins: unsafe extern "C" fn() -> Object;
    PyDict_SetItemString: unsafe extern "C" fn(Object, *const c_char, Object) -> c_int;
    PyDict_GetItemString: unsafe extern "C" fn(Object, *const c_char) -> Object;
    PyDict_Next: unsafe extern "C" fn(Object, *mut isize, *mut Object, *mut Object) -> c_int;
    PyDict_Size: unsafe extern "C" fn(Object) -> isize;
    PyUnicode_AsUTF8AndSize: unsafe extern "C" fn(Object, *mut isize) -> *const c_char;
    PyImport_GetModuleDict: unsafe extern "C" fn() -> Object;
    PyList_New: unsafe extern "C" fn(isize) -> Object;
    PyList_Size: unsafe extern "C" fn(Object) -> isize;
    PyList_GetItem: unsafe extern "C" fn(Object, isize) -> Object;
    PyType_IsSubtype: unsafe extern "C" fn(Object, Object) -> c_int;
    PyList_Append: unsafe extern "C" fn(Object, Object) -> c_int;
    Py_BuildValue: unsafe extern "C" fn(*const c_char, ...) -> Object;
    Py_IncRef: unsafe extern "C" fn(Object);
    Py_DecRef: unsafe extern "C" fn(Object);
    PyInterpreterState_Get: unsafe extern "C" fn() -> Object;
    PyInterpreterState_ThreadHead: unsafe extern "C" fn(Object) -> Object;
    PyTuple_Size: unsafe extern "C" fn(Object) -> isize;
    PyTuple_GetItem: unsafe extern "C" fn(Object, isize) -> Object;
    PyObject_SetItem: unsafe extern "C" fn(Object, Object, Object) -> c_int;
    PyObject_Size: unsafe extern "C" fn(Object) -> isize;
    PyObject_Call: unsafe extern "C" fn(Object, Object, Object) -> Object;
    PyMethod_New: unsafe extern "C" fn(Object, Object) -> Object;
    PyType_FromSpec: unsafe extern "C" fn(*mut TypeSpec) -> Object;
    PyThreadState_Next: unsafe extern "C" fn(Object) -> Object;
}
