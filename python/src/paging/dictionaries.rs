//! The dictionaries of modules that hold parameters and buffers, exchanged as a whole.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use pyo3::{PyTraverseError, PyVisit};

struct Swapped {
    /// The `SwappedDict`.
    object: Py<PyAny>,
    /// Attributes of the module.
    ///
    /// Looked up once, because a module keeps its dictionary.
    module: Py<PyDict>,
    attribute: Py<PyString>,
    outside: Py<PyDict>,
    inside: Py<PyDict>,
    paged: Py<PyDict>,
}

impl Swapped {
    fn of(object: &Bound<PyAny>) -> PyResult<Self> {
        let py = object.py();
        Ok(Self {
            module: object.getattr(intern!(py, "module"))?.getattr(intern!(py, "__dict__"))?.cast_into()?.unbind(),
            attribute: object.getattr(intern!(py, "attribute"))?.cast_into::<PyString>()?.unbind(),
            outside: object.getattr(intern!(py, "outside"))?.cast_into::<PyDict>()?.unbind(),
            inside: object.getattr(intern!(py, "inside"))?.cast_into::<PyDict>()?.unbind(),
            paged: object.getattr(intern!(py, "paged"))?.cast_into::<PyDict>()?.unbind(),
            object: object.clone().unbind(),
        })
    }

    fn put(&self, py: Python, dictionary: &Py<PyDict>) -> PyResult<()> {
        self.module.bind(py).set_item(&self.attribute, dictionary)
    }

    /// Returns true if the dictionary contains only paged tensors.
    fn all_paged(&self, py: Python) -> bool {
        let paged = self.paged.bind(py).len();
        self.inside.bind(py).len() == paged && self.outside.bind(py).len() == paged
    }
}

/// `SwappedDict`s of a model.
#[pyclass(frozen, module = "memlab._native")]
pub struct SwappedDicts {
    all: Vec<Swapped>,
}

#[pymethods]
impl SwappedDicts {
    #[new]
    fn new(swapped: Vec<Bound<PyAny>>) -> PyResult<Self> {
        Ok(Self { all: swapped.iter().map(Swapped::of).collect::<PyResult<_>>()? })
    }

    /// Makes modules hold `inside`.
    fn enter(&self, py: Python) -> PyResult<()> {
        self.all.iter().try_for_each(|swapped| swapped.put(py, &swapped.inside))
    }

    /// Makes modules hold `outside`, with the assignments of forwards.
    fn leave(&self, py: Python) -> PyResult<()> {
        for swapped in &self.all {
            if !swapped.all_paged(py) {
                swapped.object.call_method0(py, intern!(py, "take_assignments"))?;
            }
            swapped.put(py, &swapped.outside)?;
        }
        Ok(())
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        for swapped in &self.all {
            visit.call(&swapped.object)?;
            visit.call(&swapped.module)?;
            visit.call(&swapped.outside)?;
            visit.call(&swapped.inside)?;
            visit.call(&swapped.paged)?;
        }
        Ok(())
    }
}
