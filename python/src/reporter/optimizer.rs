//! Tensors of an optimizer's state, and their kinds.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyFloat, PyInt, PyList, PyString, PyTuple, PyType};

use super::classes::TensorClasses;
use super::mappings::entries;

/// Deepest nesting of dictionaries and lists to search.
///
/// State may contain itself.
const MAX_NESTING: usize = 100;

/// A part of an optimizer's state: the parameter that it belongs to, if any, its content, and its name.
pub struct OptimizerStatePart<'py> {
    pub owner: Option<Bound<'py, PyAny>>,
    pub value: Bound<'py, PyAny>,
    pub path: String,
}

/// Returns the parts of an optimizer's state: one for each parameter, then one for each group of parameters.
pub fn states<'py>(
    optimizer: &Bound<'py, PyAny>,
    classes: &mut TensorClasses<'_, 'py>,
) -> PyResult<Vec<OptimizerStatePart<'py>>> {
    let mut found = Vec::new();
    if let Some(state) = optimizer.getattr_opt("state")? {
        for (key, value) in entries(&state)? {
            found.push(match classes.is_tensor(&key) {
                true => OptimizerStatePart { owner: Some(key), value, path: String::new() },
                false => OptimizerStatePart { owner: None, value, path: key.str()?.to_string() },
            });
        }
    }
    if let Some(groups) = optimizer.getattr_opt("param_groups")? {
        let groups: Vec<_> = groups.try_iter()?.collect::<PyResult<_>>()?;
        for (index, group) in groups.into_iter().enumerate() {
            let settings = PyDict::new(optimizer.py());
            for (key, value) in entries(&group)? {
                if !key.eq(intern!(optimizer.py(), "params"))? {
                    settings.set_item(key, value)?;
                }
            }
            found.push(OptimizerStatePart {
                owner: None,
                value: settings.into_any(),
                path: format!("param_groups.{index}"),
            });
        }
    }
    Ok(found)
}

/// Visits the tensors in nested dictionaries and lists, with the path to each, which begins with `path`.
pub fn visit_tensors<'py>(
    value: &Bound<'py, PyAny>,
    path: &str,
    classes: &mut TensorClasses<'_, 'py>,
    visit: &mut dyn FnMut(&str, &Bound<'py, PyAny>) -> PyResult<()>,
) -> PyResult<()> {
    Walk { classes, path: path.to_owned(), depth: 0, visit }.enter(value)
}

struct Walk<'a, 'b, 'py> {
    classes: &'a mut TensorClasses<'b, 'py>,
    path: String,
    depth: usize,
    visit: &'a mut dyn FnMut(&str, &Bound<'py, PyAny>) -> PyResult<()>,
}

impl<'py> Walk<'_, '_, 'py> {
    fn enter(&mut self, value: &Bound<'py, PyAny>) -> PyResult<()> {
        if self.classes.is_tensor(value) {
            (self.visit)(&self.path, value)?;
        } else if self.depth == MAX_NESTING || is_number_or_text(value) {
            // It contains no tensors, or none within the limit.
        } else if value.is_instance_of::<PyDict>() {
            for (key, entry) in entries(value)? {
                let key = key.str()?;
                self.descend(&key.to_string_lossy(), &entry)?;
            }
        } else if value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>() {
            for (index, entry) in value.try_iter()?.enumerate() {
                self.descend(&index.to_string(), &entry?)?;
            }
        }
        Ok(())
    }

    fn descend(&mut self, key: &str, entry: &Bound<'py, PyAny>) -> PyResult<()> {
        let length = self.path.len();
        if length > 0 {
            self.path.push('.');
        }
        self.path.push_str(key);
        self.depth += 1;
        self.enter(entry)?;
        self.depth -= 1;
        self.path.truncate(length);
        Ok(())
    }
}

fn is_number_or_text(value: &Bound<PyAny>) -> bool {
    value.is_exact_instance_of::<PyFloat>()
        || value.is_exact_instance_of::<PyInt>()
        || value.is_exact_instance_of::<PyString>()
}

/// See `_native.pyi`.
#[pyfunction]
pub fn optimizer_tensors<'py>(
    optimizer: &Bound<'py, PyAny>,
    tensor_class: &Bound<'py, PyType>,
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let mut classes = TensorClasses::new(tensor_class);
    let mut found = Vec::new();
    for state in states(optimizer, &mut classes)? {
        visit_tensors(&state.value, &state.path, &mut classes, &mut |_, tensor| {
            found.push(tensor.clone());
            Ok(())
        })?;
    }
    Ok(found)
}
