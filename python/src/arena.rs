//! `Arena`, and the part of it that several processes share.

use std::path::PathBuf;
use std::sync::Arc;

use memlab_paging::arena;
use memlab_paging::checkpoint::FileRange;
use memlab_paging::sharing;
use pyo3::prelude::*;

use crate::error::raised;

/// Host memory that holds all weights in one mapping of `nbytes`.
///
/// Pages are committed on the first write, and freed when this object and all pipelines on it are gone. `borders` are the
/// offsets between the chunks that are pinned one by one; only the pipeline's copies may cross them. With `share`, several
/// processes share its first bytes.
#[pyclass(frozen, module = "memlab._native")]
pub struct Arena {
    pub inner: Arc<arena::Arena>,
    /// Kept as long as the memory is used, because this process also sends it to others.
    share: Option<Py<HostShare>>,
}

#[pymethods]
impl Arena {
    #[new]
    #[pyo3(signature = (nbytes, borders=None, share=None))]
    fn new(nbytes: u64, borders: Option<Vec<u64>>, share: Option<Py<HostShare>>) -> PyResult<Self> {
        let made = match (borders, &share) {
            (borders, Some(share)) => {
                let share = &share.get().inner;
                let memory = Arc::clone(share.memory());
                arena::Arena::sharing(nbytes, &borders.unwrap_or_default(), memory, share.is_first())
            }
            (Some(borders), None) => arena::Arena::with_borders(nbytes, &borders),
            (None, None) => arena::Arena::new(nbytes),
        };
        Ok(Self { inner: Arc::new(made.map_err(raised)?), share })
    }

    /// Address of the first byte.
    #[getter]
    fn address(&self) -> u64 {
        self.inner.address()
    }

    #[getter]
    fn nbytes(&self) -> u64 {
        self.inner.bytes()
    }

    /// Size of the shared part at its start.
    #[getter]
    fn shared_nbytes(&self) -> u64 {
        self.inner.shared_bytes()
    }

    /// Address at which this process may write to the shared part, and sees only its own writes.
    #[getter]
    fn view_address(&self) -> Option<u64> {
        self.inner.view_address()
    }

    /// True if the device can only read the shared part once it is pinned.
    #[getter]
    fn shielded(&self) -> bool {
        self.inner.is_shielded()
    }

    /// Makes the shared part read-only, and available to other processes.
    fn publish(&self) -> PyResult<()> {
        let Some(share) = &self.share else { return Ok(()) };
        self.inner.protect().map_err(raised)?;
        share.get().inner.publish().map_err(raised)
    }

    /// Returns true if memory at `address` differs from the `nbytes` at `offset`.
    fn differs(&self, py: Python, offset: u64, address: u64, nbytes: u64) -> PyResult<bool> {
        // SAFETY: the caller, the rest of the package, has the memory from a tensor that lives.
        py.detach(|| unsafe { self.inner.differs(offset, address, nbytes) }).map_err(raised)
    }

    /// True if the whole arena is pinned.
    #[getter]
    fn pinned(&self) -> bool {
        self.inner.is_pinned()
    }

    /// True if a forked child inherits the bytes.
    #[getter]
    fn inherited(&self) -> bool {
        self.inner.is_inherited()
    }

    /// Reason why the last attempt did not pin the whole arena.
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
        let part = |(path, file_offset, offset, bytes)| FileRange { path, file_offset, offset, bytes };
        let parts: Vec<FileRange> = parts.into_iter().map(part).collect();
        py.detach(|| self.inner.read(&parts)).map_err(raised)
    }

    /// Pins the arena, so that the device reads it directly.
    ///
    /// Returns true if the whole arena is pinned; `refused` contains the reason otherwise.
    fn pin(&self, py: Python, device: i32) -> bool {
        py.detach(|| self.inner.pin(device))
    }

    /// Makes the arena pageable again.
    fn unpin(&self, py: Python) {
        py.detach(|| self.inner.unpin());
    }

    fn __repr__(&self) -> String {
        let pinned = if self.inner.is_pinned() { ", pinned" } else { "" };
        format!("<memlab Arena of {} bytes at {:#x}{pinned}>", self.inner.bytes(), self.inner.address())
    }
}

/// Share of this process in memory that the processes of one user on this host share.
#[pyclass(frozen, module = "memlab._native")]
pub struct HostShare {
    inner: sharing::HostShare,
}

#[pymethods]
impl HostShare {
    /// Joins the processes that share `nbytes` under a name.
    ///
    /// Waits while another process fills the memory, and calls `waiting` with its number.
    #[staticmethod]
    #[pyo3(signature = (name, nbytes, waiting=None))]
    fn join(py: Python, name: &str, nbytes: u64, waiting: Option<Py<PyAny>>) -> PyResult<Self> {
        let mut interrupt = None;
        let look = |process: i32| {
            Python::attach(|py| {
                py.check_signals()?;
                waiting.as_ref().map_or(Ok(()), |waiting| waiting.call1(py, (process,)).map(drop))
            })
        };
        let joined = py.detach(|| {
            sharing::HostShare::join(name, nbytes, &mut |process| {
                interrupt = look(process).err();
                interrupt.is_none()
            })
        });
        match (joined.map_err(raised)?, interrupt) {
            (Some(inner), _) => Ok(Self { inner }),
            (None, Some(interrupt)) => Err(interrupt),
            (None, None) => unreachable!("it waits until it is interrupted"),
        }
    }

    /// True if this process is the first, and has to fill the memory.
    #[getter]
    fn first(&self) -> bool {
        self.inner.is_first()
    }

    /// Number of processes that have the memory.
    fn members(&self, py: Python) -> usize {
        py.detach(|| self.inner.members())
    }

    /// Leaves filling the memory to the next process.
    fn abandon(&self) {
        self.inner.abandon();
    }

    fn __repr__(&self) -> String {
        format!("<memlab HostShare: {}>", self.inner)
    }
}
