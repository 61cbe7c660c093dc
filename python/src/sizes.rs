//! The grammar of sizes that the command and the environment have, for Python.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

#[pyfunction]
pub fn parse_size(text: &str) -> PyResult<u64> {
    memlab_units::parse_size(text).map_err(|error| PyValueError::new_err(error.to_string()))
}

#[pyfunction]
pub fn format_size(nbytes: u64) -> String {
    memlab_units::format::size(nbytes)
}
