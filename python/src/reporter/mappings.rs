//! Entries of dictionaries and of similar objects.

use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};

/// A key and its value.
pub type Entry<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>);

/// Returns all entries of a mapping at once, because code that processes them may change it.
pub fn entries<'py>(mapping: &Bound<'py, PyAny>) -> PyResult<Vec<Entry<'py>>> {
    match mapping.cast::<PyDict>() {
        Ok(dict) if has_entries_of_a_dict(dict)? => Ok(dict.iter().collect()),
        _ => mapping.call_method0(intern!(mapping.py(), "items"))?.try_iter()?.map(|entry| entry?.extract()).collect(),
    }
}

/// Returns the entries of a dictionary with matching values.
///
/// Much quicker than [`entries`] if these are few, because it creates no references to the others. `is_wanted` must not run
/// Python code.
pub fn values_that<'py>(
    dict: &Bound<'py, PyDict>,
    mut is_wanted: impl FnMut(&Bound<'py, PyAny>) -> bool,
) -> Vec<Entry<'py>> {
    let py = dict.py();
    let mut found = Vec::new();
    let (mut place, mut key, mut value) = (0, std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the dictionary is alive, and nothing changes it meanwhile. It keeps keys and values alive.
    unsafe {
        while ffi::PyDict_Next(dict.as_ptr(), &mut place, &mut key, &mut value) != 0 {
            if is_wanted(Borrowed::from_ptr(py, value).as_any()) {
                found.push((Bound::from_borrowed_ptr(py, key), Bound::from_borrowed_ptr(py, value)));
            }
        }
    }
    found
}

/// Returns true if `items()` returns the entries in the dictionary's order.
///
/// An `OrderedDict` has its own order.
fn has_entries_of_a_dict(dict: &Bound<PyDict>) -> PyResult<bool> {
    if dict.is_exact_instance_of::<PyDict>() {
        return Ok(true);
    }
    let items = intern!(dict.py(), "items");
    Ok(dict.get_type().getattr(items)?.is(&PyType::new::<PyDict>(dict.py()).getattr(items)?))
}
