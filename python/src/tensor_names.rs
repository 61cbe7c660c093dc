//! Names of tensors for `memlab.MemReporter`, which asks for thousands of them in each report.

use std::collections::{HashMap, HashSet};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyFloat, PyInt, PyList, PyString, PyType, PyWeakrefMethods, PyWeakrefReference};

/// Names, and the tensors that have them.
type NamedTensors<'py> = (Vec<Bound<'py, PyString>>, Vec<Bound<'py, PyAny>>);

/// Names by the addresses of tensors, with a reference that tells whether the tensor there is still the same.
#[pyclass(module = "memlab._native")]
#[derive(Default)]
pub struct TensorNames {
    names: HashMap<usize, (Py<PyWeakrefReference>, Py<PyString>)>,
    numbered: usize,
    /// Names, with those of tensors that are gone, before the latter are dropped.
    most: usize,
}

#[pymethods]
impl TensorNames {
    #[new]
    fn new() -> Self {
        Self { most: 1000, ..Self::default() }
    }

    fn give<'py>(&mut self, names: &Bound<'py, PyList>, tensors: &Bound<'py, PyList>) -> PyResult<()> {
        for (name, tensor) in names.iter().zip(tensors) {
            let name = name.cast_into::<PyString>()?;
            self.keep(&tensor, name)?;
        }
        Ok(())
    }

    fn of_one<'py>(&mut self, tensor: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyString>> {
        let py = tensor.py();
        if let Some((reference, name)) = self.names.get(&(tensor.as_ptr() as usize)) {
            // Another one may have the address of one that is gone.
            if reference.bind(py).upgrade().is_some_and(|known| known.is(tensor)) {
                return Ok(name.bind(py).clone());
            }
        }
        let class = tensor.get_type().getattr(pyo3::intern!(py, "__name__"))?;
        let name = PyString::new(py, &format!("{class}{}", self.numbered));
        self.numbered += 1;
        self.keep(tensor, name.clone())?;
        Ok(name)
    }

    fn of<'py>(&mut self, tensors: &Bound<'py, PyList>) -> PyResult<Vec<Bound<'py, PyString>>> {
        tensors.iter().map(|tensor| self.of_one(&tensor)).collect()
    }

    fn with_gradients<'py>(
        &mut self,
        tensors: &Bound<'py, PyList>,
        gradients: Vec<(usize, Bound<'py, PyAny>)>,
    ) -> PyResult<NamedTensors<'py>> {
        let taken: HashSet<usize> = gradients.iter().map(|(_, gradient)| gradient.as_ptr() as usize).collect();
        let mut gradients = gradients.into_iter().peekable();
        let (mut names, mut all) = (Vec::new(), Vec::new());
        for (place, tensor) in tensors.iter().enumerate() {
            let gradient = gradients.next_if(|(of, _)| *of == place);
            if taken.contains(&(tensor.as_ptr() as usize)) {
                continue;
            }
            let name = self.of_one(&tensor)?;
            names.push(name.clone());
            all.push(tensor);
            if let Some((_, gradient)) = gradient {
                names.push(PyString::new(name.py(), &format!("{}.grad", name.to_string_lossy())));
                all.push(gradient);
            }
        }
        Ok((names, all))
    }

    /// See `_native.pyi`.
    fn give_state<'py>(
        &mut self,
        prefix: &str,
        state: &Bound<'py, PyDict>,
        tensor_class: &Bound<'py, PyType>,
        named: &Bound<'py, PyDict>,
    ) -> PyResult<bool> {
        let is_tensor = |value: &Bound<PyAny>| value.get_type_ptr() == tensor_class.as_type_ptr();
        let is_number =
            |value: &Bound<PyAny>| value.is_exact_instance_of::<PyInt>() || value.is_exact_instance_of::<PyFloat>();
        if !state.values().iter().all(|value| is_tensor(&value) || is_number(&value)) {
            return Ok(false);
        }
        for (key, tensor) in state.iter().filter(|(_, value)| is_tensor(value)) {
            let address = tensor.as_ptr() as usize;
            if !named.contains(address)? {
                named.set_item(address, &tensor)?;
                let name = PyString::new(state.py(), &format!("{prefix}.{}", key.str()?.to_string_lossy()));
                self.keep(&tensor, name)?;
            }
        }
        Ok(true)
    }

    fn forget_dead(&mut self, py: Python) {
        if self.names.len() > self.most {
            self.names.retain(|_, (reference, _)| reference.bind(py).upgrade().is_some());
            self.most = 2 * self.names.len() + 1000;
        }
    }
}

impl TensorNames {
    fn keep<'py>(&mut self, tensor: &Bound<'py, PyAny>, name: Bound<'py, PyString>) -> PyResult<()> {
        let reference = PyWeakrefReference::new(tensor)?;
        self.names.insert(tensor.as_ptr() as usize, (reference.unbind(), name.unbind()));
        Ok(())
    }
}
