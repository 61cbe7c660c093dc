//! Names of tensors.
//!
//! They stay the same from one report to the next.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString, PyType, PyWeakrefMethods, PyWeakrefReference};
use rustc_hash::FxHashMap;

use super::classes::TensorClasses;
use super::model::model_tensors;
use super::objects::addresses;
use super::optimizer::{states, visit_tensors};

/// A name, with a weak reference to detect that another tensor uses the address.
struct Name {
    tensor: Py<PyWeakrefReference>,
    text: Py<PyString>,
}

impl Name {
    /// Returns the text, if this is the name of `tensor`.
    ///
    /// A new tensor may have the address of a dead one.
    fn of<'py>(&self, tensor: &Bound<'py, PyAny>) -> Option<&Bound<'py, PyString>> {
        let known = self.tensor.bind(tensor.py()).upgrade()?;
        known.is(tensor).then(|| self.text.bind(tensor.py()))
    }
}

/// See `_native.pyi`.
#[pyclass(module = "memlab._native")]
#[derive(Default)]
pub struct TensorNames {
    names: FxHashMap<usize, Name>,
    numbered: usize,
    /// Number of names at which those of dead tensors are dropped.
    most: usize,
}

#[pymethods]
impl TensorNames {
    #[new]
    fn new() -> Self {
        Self { most: 1000, ..Self::default() }
    }

    // The following code calls objects of the program, during which another thread may report. It holds no borrow meanwhile.

    fn give_model<'py>(
        slf: &Bound<'py, Self>,
        model: &Bound<'py, PyAny>,
        module_class: &Bound<'py, PyType>,
        tensor_class: &Bound<'py, PyType>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let named = model_tensors(model, module_class, tensor_class)?;
        let mut names = slf.try_borrow_mut()?;
        let mut give = |(name, tensor): (String, Bound<'py, PyAny>)| names.give(&tensor, &name).map(|()| tensor);
        named.into_iter().map(&mut give).collect()
    }

    fn give_state<'py>(
        slf: &Bound<'py, Self>,
        label: &str,
        optimizer: &Bound<'py, PyAny>,
        tensor_class: &Bound<'py, PyType>,
        named: &Bound<'py, PyList>,
    ) -> PyResult<()> {
        let mut classes = TensorClasses::new(tensor_class);
        let mut taken = addresses(named);
        let mut name = String::new();
        for state in states(optimizer, &mut classes)? {
            name.clear();
            name.push_str(label);
            if let Some(owner) = &state.owner {
                name.push('.');
                name.push_str(&slf.try_borrow_mut()?.of(owner)?.to_string_lossy());
            }
            name.push('.');
            let prefix = name.len();
            visit_tensors(&state.value, &state.path, &mut classes, &mut |path, tensor| {
                if taken.insert(tensor.as_ptr() as usize) {
                    name.truncate(prefix);
                    name.push_str(path);
                    slf.try_borrow_mut()?.give(tensor, &name)?;
                    named.append(tensor)?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    fn forget_dead(&mut self, py: Python) {
        if self.names.len() > self.most {
            self.names.retain(|_, name| name.tensor.bind(py).upgrade().is_some());
            self.most = 2 * self.names.len() + 1000;
        }
    }
}

impl TensorNames {
    /// Returns the name of a tensor.
    ///
    /// A tensor without a name gets the next number.
    pub fn of<'py>(&mut self, tensor: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyString>> {
        if let Some(name) = self.names.get(&(tensor.as_ptr() as usize)).and_then(|known| known.of(tensor)) {
            return Ok(name.clone());
        }
        let class = tensor.get_type().getattr(intern!(tensor.py(), "__name__"))?;
        let name = PyString::new(tensor.py(), &format!("{class}{}", self.numbered));
        self.numbered += 1;
        self.keep(tensor, name.clone())?;
        Ok(name)
    }

    fn give(&mut self, tensor: &Bound<PyAny>, name: &str) -> PyResult<()> {
        let known = self.names.get(&(tensor.as_ptr() as usize)).and_then(|known| known.of(tensor));
        match known {
            Some(known) if known.to_string_lossy() == name => Ok(()),
            _ => self.keep(tensor, PyString::new(tensor.py(), name)),
        }
    }

    fn keep<'py>(&mut self, tensor: &Bound<'py, PyAny>, name: Bound<'py, PyString>) -> PyResult<()> {
        let reference = PyWeakrefReference::new(tensor)?;
        self.names.insert(tensor.as_ptr() as usize, Name { tensor: reference.unbind(), text: name.unbind() });
        Ok(())
    }
}
