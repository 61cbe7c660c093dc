//! `OffloadStream` and `HostCopy`.

use memlab_paging::offload_stream;
use memlab_paging::{Error, Stream};
use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;

use crate::error::raised;

/// Copies device memory to the host and back, in the order of the calls.
///
/// Without a `device`, a thread copies host memory, with at most `bytes_per_second`.
#[pyclass(frozen, module = "memlab._native")]
pub struct OffloadStream {
    /// `None` once it is being dropped.
    inner: Option<offload_stream::OffloadStream>,
}

impl OffloadStream {
    fn get(&self) -> PyResult<&offload_stream::OffloadStream> {
        self.inner.as_ref().ok_or_else(|| raised(Error::Failed("the stream is closed".into())))
    }
}

#[pymethods]
impl OffloadStream {
    #[new]
    #[pyo3(signature = (device, bytes_per_second = None))]
    fn new(py: Python, device: Option<i32>, bytes_per_second: Option<f64>) -> PyResult<Self> {
        Ok(Self {
            inner: Some(py.detach(|| offload_stream::OffloadStream::new(device, bytes_per_second)).map_err(raised)?),
        })
    }

    /// Bytes of host memory that `grow` would add to save `nbytes`; 0 if a place is free.
    fn growth(&self, nbytes: u64) -> PyResult<u64> {
        Ok(self.get()?.growth(nbytes))
    }

    /// Adds pinned host memory.
    ///
    /// Raises MemoryError if the system refuses.
    fn grow(&self, py: Python, nbytes: u64) -> PyResult<()> {
        let inner = self.get()?;
        py.detach(|| inner.grow(nbytes)).map_err(raised)
    }

    /// Bytes of host memory that the stream has.
    #[getter]
    fn host_nbytes(&self) -> PyResult<u64> {
        Ok(self.get()?.host_bytes())
    }

    /// Starts copying device memory to the host, after the work queued on `stream`.
    ///
    /// Raises MemoryError if no place is free.
    ///
    /// The memory must stay unchanged until work that waits for the copy (`HostCopy.wait_saved`).
    fn save(&self, address: u64, nbytes: u64, stream: u64) -> PyResult<HostCopy> {
        // SAFETY: the caller, the rest of the package, keeps the storage until a stream waits for the copy.
        let copy = unsafe { self.get()?.save(address, nbytes, Stream(stream)) }.map_err(raised)?;
        let inner = copy.ok_or_else(|| PyMemoryError::new_err("there is no place on the host: call grow"))?;
        Ok(HostCopy { inner })
    }

    /// Turns the timing of copies on or off.
    fn timed(&self, on: bool) -> PyResult<()> {
        self.get()?.set_timed(on);
        Ok(())
    }

    /// Speed of the copies since `timed(True)` or the last call; None without copies.
    ///
    /// Waits for them.
    fn bytes_per_second(&self, py: Python) -> PyResult<Option<f64>> {
        let inner = self.get()?;
        py.detach(|| inner.bytes_per_second()).map_err(raised)
    }

    /// Waits until all copies are done.
    fn synchronize(&self, py: Python) -> PyResult<()> {
        let inner = self.get()?;
        py.detach(|| inner.synchronize()).map_err(raised)
    }
}

impl Drop for OffloadStream {
    fn drop(&mut self) {
        // Waits for copies in progress. At the interpreter's end no GIL can be released.
        let inner = self.inner.take();
        let _ = Python::try_attach(|py| py.detach(|| drop(inner)));
    }
}

/// Bytes of device memory on the host.
///
/// Dropping this object frees the place.
#[pyclass(frozen, module = "memlab._native")]
pub struct HostCopy {
    inner: offload_stream::HostCopy,
}

#[pymethods]
impl HostCopy {
    #[getter]
    fn nbytes(&self) -> u64 {
        self.inner.bytes()
    }

    /// Makes later work on `stream` wait until the bytes are on the host.
    fn wait_saved(&self, py: Python, stream: u64) -> PyResult<()> {
        py.detach(|| self.inner.wait_saved(Stream(stream))).map_err(raised)
    }

    /// Starts copying the bytes to device memory, after the work queued on `stream`.
    ///
    /// No other code may use the memory until work that waits for the copy (`wait_loaded`).
    fn load(&self, address: u64, stream: u64) -> PyResult<()> {
        // SAFETY: the caller, the rest of the package, keeps the storage until a stream waits for the copy.
        unsafe { self.inner.load(address, Stream(stream)) }.map_err(raised)
    }

    /// Makes later work on `stream` wait for the last `load`.
    fn wait_loaded(&self, py: Python, stream: u64) -> PyResult<()> {
        py.detach(|| self.inner.wait_loaded(Stream(stream))).map_err(raised)
    }
}
