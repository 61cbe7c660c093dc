//! `Arena`.

use std::path::PathBuf;
use std::sync::Arc;

use memlab_loader::arena;
use memlab_loader::checkpoint::Part;
use pyo3::prelude::*;

use crate::error::raised;

/// Host memory that holds all weights, in one piece: `nbytes` of address space. Memory is committed when it is first written,
/// and freed when this object and all pipelines on it are gone. `borders` are the offsets between the chunks that are pinned
/// one by one; only the pipeline's copies may cross them.
#[pyclass(frozen, module = "memlab._native")]
pub struct Arena {
    pub inner: Arc<arena::Arena>,
}

#[pymethods]
impl Arena {
    #[new]
    #[pyo3(signature = (nbytes, borders=None))]
    fn new(nbytes: u64, borders: Option<Vec<u64>>) -> PyResult<Self> {
        let made = match borders {
            Some(borders) => arena::Arena::with_borders(nbytes, &borders),
            None => arena::Arena::new(nbytes),
        };
        Ok(Self { inner: Arc::new(made.map_err(raised)?) })
    }

    /// The address of its first byte.
    #[getter]
    fn address(&self) -> u64 {
        self.inner.address()
    }

    #[getter]
    fn nbytes(&self) -> u64 {
        self.inner.bytes()
    }

    /// Whether all of it is pinned.
    #[getter]
    fn pinned(&self) -> bool {
        self.inner.is_pinned()
    }

    /// Why the last attempt could not pin all of it.
    #[getter]
    fn refused(&self) -> Option<String> {
        self.inner.pin_failure()
    }

    /// Copies `nbytes` from host memory at `address` to `offset`.
    fn fill(&self, py: Python, offset: u64, address: u64, nbytes: u64) -> PyResult<()> {
        // SAFETY: the caller, the rest of the package, has the memory from a tensor that lives.
        py.detach(|| unsafe { self.inner.fill(offset, address, nbytes) }).map_err(raised)
    }

    /// Reads parts of files: (path, offset in the file, offset in the arena, bytes).
    fn read(&self, py: Python, parts: Vec<(PathBuf, u64, u64, u64)>) -> PyResult<()> {
        let part = |(path, file_offset, offset, bytes)| Part { path, file_offset, offset, bytes };
        let parts: Vec<Part> = parts.into_iter().map(part).collect();
        py.detach(|| self.inner.read(&parts)).map_err(raised)
    }

    /// Pins it, so that the device reads it directly. Returns whether all of it could be pinned; `refused` says why not.
    fn pin(&self, py: Python, device: i32) -> bool {
        py.detach(|| self.inner.pin(device))
    }

    /// Makes it pageable again.
    fn unpin(&self, py: Python) {
        py.detach(|| self.inner.unpin());
    }

    fn __repr__(&self) -> String {
        let pinned = if self.inner.is_pinned() { ", pinned" } else { "" };
        format!("<memlab Arena of {} bytes at {:#x}{pinned}>", self.inner.bytes(), self.inner.address())
    }
}
