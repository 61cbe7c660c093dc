//! Position of the program's code, and the parts of it in notebook cells.
//!
//! `program.py` finds both. It runs beside the agent and does not need PyTorch.

use std::ffi::{CStr, CString, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::embedded::{GUARDS_SOURCE, source, started};
use super::native;
use crate::recorder::Recorder;
use interpose_python::api::Api;

const SOURCE: &CStr = source!("program.py");

/// The Python object that `program.py` returned, once it has started.
static PROGRAM: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Reports the position of the program's code, at the first call, and names the cells that are new since the last call.
///
/// # Safety
///
/// The GIL must be held.
pub(super) unsafe fn run(api: &Api, recorder: &Recorder) {
    // SAFETY: the caller holds the GIL; every new reference but the program's is dropped.
    unsafe {
        let mut program = PROGRAM.load(Ordering::Acquire);
        if program.is_null() {
            let native = native::module(api);
            if native.is_null() {
                return;
            }
            program = started(api, &[GUARDS_SOURCE, SOURCE], c"memlab_program", native);
            PROGRAM.store(program, Ordering::Release);
        }
        let cells = recorder.interner.take_cells();
        if program.is_null() || cells.is_empty() {
            return;
        }
        let list = (api.PyList_New)(0);
        let name_cells = (api.PyObject_GetAttrString)(program, c"name_cells".as_ptr());
        if !list.is_null() && !name_cells.is_null() {
            for cell in cells {
                let file = CString::new(cell.file).unwrap_or_default();
                let function = CString::new(cell.function).unwrap_or_default();
                let (file, function) = (file.as_ptr(), function.as_ptr());
                let item = (api.Py_BuildValue)(c"(IsIs)".as_ptr(), cell.frame, file, cell.line, function);
                if !item.is_null() {
                    (api.PyList_Append)(list, item);
                    (api.Py_DecRef)(item);
                }
            }
            let result = (api.PyObject_CallFunctionObjArgs)(name_cells, list, ptr::null_mut::<c_void>());
            if !result.is_null() {
                (api.Py_DecRef)(result);
            }
        }
        for object in [name_cells, list] {
            if !object.is_null() {
                (api.Py_DecRef)(object);
            }
        }
    }
}

/// Called in a forked child, which reports it again in its trace.
pub(super) fn reset_in_child() {
    PROGRAM.store(ptr::null_mut(), Ordering::Release);
}
