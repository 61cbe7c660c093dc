//! The grammar of sizes of the command and the environment, for Python.

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

/// Formats a size with two decimals and the letter of the largest binary unit that fits, as in pytorch_memlab's tables.
#[pyfunction]
pub fn short_size(nbytes: i64) -> String {
    let units = [(40, 'T'), (30, 'G'), (20, 'M'), (10, 'K')];
    let (bits, letter) = units.into_iter().find(|(bits, _)| nbytes.unsigned_abs() >> bits > 0).unwrap_or((0, 'B'));
    format!("{:.2}{letter}", nbytes as f64 / (1u64 << bits) as f64)
}
