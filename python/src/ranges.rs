//! Ranges that the program names, for `memlab.annotate`.
//!
//! Has no effect if libmemlab.so is not in the process.

use std::ffi::CString;

use pyo3::prelude::*;

use crate::library::Library;

/// Enters a range on this thread.
///
/// Its name ends at the first NUL.
#[pyfunction]
pub fn range_push(name: &str) {
    if let Some(library) = Library::get_if_loaded() {
        let text = name.split('\0').next().unwrap_or_default();
        if let Ok(text) = CString::new(text) {
            library.range_push(&text);
        }
    }
}

/// Leaves the range that this thread entered last with `range_push`.
#[pyfunction]
pub fn range_pop() {
    if let Some(library) = Library::get_if_loaded() {
        library.range_pop();
    }
}
