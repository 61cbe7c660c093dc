//! Replacement of a module's `forward`.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use pyo3::{PyTraverseError, PyVisit};

use super::holder::{Boundaries, UnitHolder};

/// Reports the start and end of a call to the context of the thread, an attribute of `thread`.
///
/// Outside of forwards, calls `outermost` with the boundaries, the original function and its arguments.
#[pyclass(subclass, frozen, module = "memlab._native")]
pub struct WatchedForward {
    boundaries: Py<Boundaries>,
    original: Py<PyAny>,
    thread: Py<PyAny>,
    outermost: Py<PyAny>,
}

#[pymethods]
impl WatchedForward {
    #[new]
    fn new(boundaries: Py<Boundaries>, original: Py<PyAny>, thread: Py<PyAny>, outermost: Py<PyAny>) -> Self {
        Self { boundaries, original, thread, outermost }
    }

    #[pyo3(signature = (*args, **kwargs))]
    fn __call__<'py>(
        &self,
        py: Python<'py>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let context = self.thread.bind(py).getattr(intern!(py, "context"))?;
        if let Ok(holder) = context.cast::<UnitHolder>() {
            let boundaries = self.boundaries.get();
            UnitHolder::enter(holder, boundaries)?;
            let result = self.original.bind(py).call(args, kwargs)?;
            UnitHolder::exit(holder, boundaries)?;
            return Ok(result);
        }
        let kwargs = kwargs.cloned().unwrap_or_else(|| PyDict::new(py));
        let call = (&self.boundaries, &self.original, args, kwargs);
        if context.is_none() {
            return self.outermost.bind(py).call1(call);
        }
        context.call_method1(intern!(py, "call"), call)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.boundaries)?;
        visit.call(&self.original)?;
        visit.call(&self.thread)?;
        visit.call(&self.outermost)
    }
}
