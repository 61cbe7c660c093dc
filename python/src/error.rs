//! Converts the loader's errors to Python's.

use memlab_paging::Error;
use pyo3::PyErr;
use pyo3::exceptions::{PyMemoryError, PyOSError, PyRuntimeError, PyValueError};

pub fn raised(error: Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::Invalid(_) => PyValueError::new_err(text),
        Error::Memory(_) => PyMemoryError::new_err(text),
        Error::Failed(_) => PyRuntimeError::new_err(text),
        // With number and file, so that Python raises FileNotFoundError or PermissionError where they apply.
        Error::File { path, error } => match error.raw_os_error() {
            Some(number) => PyOSError::new_err((number, error.to_string(), path.into_os_string())),
            None => PyOSError::new_err(text),
        },
    }
}
