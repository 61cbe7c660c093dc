//! PyTorch's counts for tensors and storages.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::reporter::getters::{Getter, call};

/// Reads versions, addresses, and use counts of storages.
///
/// `use_count` takes a key from `torch_private.storage_key`, and `current_stream` takes the index of a CUDA device.
#[pyclass(frozen, module = "memlab._native")]
pub struct TensorReads {
    version: Getter,
    address: Py<PyAny>,
    use_count: Py<PyAny>,
    current_stream: Py<PyAny>,
}

#[pymethods]
impl TensorReads {
    #[new]
    fn new(tensor_class: &Bound<PyType>, use_count: Py<PyAny>, current_stream: Py<PyAny>) -> PyResult<Self> {
        let address = tensor_class.getattr("data_ptr")?.unbind();
        Ok(Self { version: Getter::new(tensor_class, "_version")?, address, use_count, current_stream })
    }
}

impl TensorReads {
    /// Number of operations that have written to a tensor; 0 for an inference tensor, which does not count them.
    pub fn version(&self, tensor: &Bound<PyAny>) -> PyResult<u64> {
        match self.version.of(tensor) {
            Ok(version) => version.extract(),
            Err(error) if error.is_instance_of::<PyRuntimeError>(tensor.py()) => Ok(0),
            Err(error) => Err(error),
        }
    }

    pub fn versions(&self, py: Python, tensors: &[Py<PyAny>]) -> PyResult<Vec<u64>> {
        tensors.iter().map(|tensor| self.version(tensor.bind(py))).collect()
    }

    pub fn address(&self, tensor: &Bound<PyAny>) -> PyResult<u64> {
        call(self.address.bind(tensor.py()), tensor)?.extract()
    }

    /// Function that returns the handle of the calling thread's stream.
    pub fn current_stream<'a, 'py>(&'a self, py: Python<'py>) -> &'a Bound<'py, PyAny> {
        self.current_stream.bind(py)
    }

    /// Number of tensors that use a storage.
    pub fn use_count(&self, py: Python, storage: &Py<PyAny>) -> PyResult<u64> {
        call(self.use_count.bind(py), storage.bind(py))?.extract()
    }
}
