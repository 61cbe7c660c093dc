//! Counters of tensors, to detect edits.

use parking_lot::Mutex;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};

use super::reads::TensorReads;
use crate::reporter::getters::references;

/// Versions and reference counts of tensors at creation; for some also addresses, and use counts of their storages, which
/// PyTorch reads ten times more slowly.
///
/// Does not detect edits that change none of them.
#[pyclass(frozen, module = "memlab._native")]
pub struct EditCounters {
    reads: Py<TensorReads>,
    /// `PagedTensor`s, not their tensors: an additional reference would count as a holder.
    paged: Vec<Py<PyAny>>,
    addressed: Vec<Py<PyAny>>,
    storages: Vec<Py<PyAny>>,
    tensors_were: Vec<TensorCounters>,
    addresses_were: Vec<u64>,
    storages_were: Vec<u64>,
}

#[derive(PartialEq, Eq)]
struct TensorCounters {
    version: u64,
    references: isize,
}

impl TensorCounters {
    fn of(reads: &TensorReads, paged: &Bound<PyAny>) -> PyResult<Self> {
        let tensor = tensor(paged)?;
        Ok(Self { version: reads.version(&tensor)?, references: references(&tensor) })
    }
}

fn tensor<'py>(paged: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    paged.getattr(intern!(paged.py(), "tensor"))
}

#[pymethods]
impl EditCounters {
    /// `addressed`: tensors whose addresses are compared too.
    #[new]
    fn new(
        py: Python,
        reads: Py<TensorReads>,
        paged: Vec<Py<PyAny>>,
        addressed: Vec<Py<PyAny>>,
        storages: Vec<Py<PyAny>>,
    ) -> PyResult<Self> {
        let read = reads.get();
        let tensors_were =
            paged.iter().map(|paged| TensorCounters::of(read, paged.bind(py))).collect::<PyResult<_>>()?;
        let addresses_were =
            addressed.iter().map(|paged| read.address(&tensor(paged.bind(py))?)).collect::<PyResult<_>>()?;
        let storages_were = storages.iter().map(|storage| read.use_count(py, storage)).collect::<PyResult<_>>()?;
        Ok(Self { reads, paged, addressed, storages, tensors_were, addresses_were, storages_were })
    }

    /// Returns true if all counters are unchanged.
    fn unchanged(&self, py: Python) -> PyResult<bool> {
        let reads = self.reads.get();
        for (paged, were) in self.paged.iter().zip(&self.tensors_were) {
            if TensorCounters::of(reads, paged.bind(py))? != *were {
                return Ok(false);
            }
        }
        for (paged, &was) in self.addressed.iter().zip(&self.addresses_were) {
            if reads.address(&tensor(paged.bind(py))?)? != was {
                return Ok(false);
            }
        }
        for (storage, &was) in self.storages.iter().zip(&self.storages_were) {
            if reads.use_count(py, storage)? != was {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.paged.iter().chain(&self.addressed).try_for_each(|paged| visit.call(paged))
    }
}

/// Versions of tensors, to compare with later ones.
#[pyclass(frozen, module = "memlab._native")]
pub struct Versions {
    reads: Py<TensorReads>,
    tensors: Vec<Py<PyAny>>,
    were: Mutex<Vec<u64>>,
}

#[pymethods]
impl Versions {
    #[new]
    fn new(py: Python, reads: Py<TensorReads>, tensors: Vec<Py<PyAny>>) -> PyResult<Self> {
        let were = reads.get().versions(py, &tensors)?;
        Ok(Self { reads, tensors, were: were.into() })
    }

    /// Returns true if a tensor was written to since creation, or since `note`.
    fn changed(&self, py: Python) -> PyResult<bool> {
        let now = self.reads.get().versions(py, &self.tensors)?;
        Ok(*self.were.lock() != now)
    }

    /// Stores the present versions.
    fn note(&self, py: Python) -> PyResult<()> {
        let now = self.reads.get().versions(py, &self.tensors)?;
        *self.were.lock() = now;
        Ok(())
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.tensors.iter().try_for_each(|tensor| visit.call(tensor))
    }
}
