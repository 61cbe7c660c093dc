//! Tensors of a model with their names.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PySet, PyType};
use rustc_hash::{FxHashMap, FxHashSet};

use super::classes::TensorClasses;
use super::mappings::{entries, values_that};

type Named<'py> = Vec<(String, Bound<'py, PyAny>)>;

/// Returns parameters, buffers, and tensors that are plain attributes of modules, each once, with its name.
///
/// A tensor with several names, such as a tied weight, gets all of them, joined by `+`.
///
/// If a class overrides `named_modules`, `named_parameters` or `named_buffers`, the override is called, as in Python.
pub fn model_tensors<'py>(
    model: &Bound<'py, PyAny>,
    module_class: &Bound<'py, PyType>,
    tensor_class: &Bound<'py, PyType>,
) -> PyResult<Named<'py>> {
    let modules = modules_of(model, module_class)?;
    let mut found = registered_tensors(model, module_class, &modules)?;
    found.extend(attributes(modules, tensor_class)?);
    Ok(each_once(found))
}

/// Returns a module and all modules below it, with their paths.
///
/// A module in several places is returned once for each.
fn modules_of<'py>(model: &Bound<'py, PyAny>, module_class: &Bound<'py, PyType>) -> PyResult<Named<'py>> {
    enum Step<'py> {
        Enter(String, Bound<'py, PyAny>),
        Leave(usize),
    }
    let py = model.py();
    let walks = intern!(py, "named_modules");
    let usual = module_class.getattr(walks)?;
    let mut is_usual: FxHashMap<usize, bool> = FxHashMap::default();
    let mut found = Named::new();
    let mut entered = FxHashSet::default();
    let mut steps = vec![Step::Enter(String::new(), model.clone())];
    while let Some(step) = steps.pop() {
        let (path, module) = match step {
            Step::Enter(path, module) => (path, module),
            Step::Leave(address) => {
                entered.remove(&address);
                continue;
            }
        };
        if !entered.insert(module.as_ptr() as usize) {
            continue; // The module contains itself.
        }
        steps.push(Step::Leave(module.as_ptr() as usize));
        let kind = module.get_type();
        let is_usual = match is_usual.get(&(kind.as_ptr() as usize)) {
            Some(&known) => known,
            None => {
                let answer = kind.getattr(walks)?.is(&usual);
                is_usual.insert(kind.as_ptr() as usize, answer);
                answer
            }
        };
        // A class, or a single module, can override the walk over the modules below it.
        if !is_usual || attributes_of(&module)?.contains(walks)? {
            for pair in module.call_method1(walks, (PySet::empty(py)?, path, false))?.try_iter()? {
                found.push(pair?.extract()?);
            }
            continue;
        }
        for (name, below) in entries(&module.getattr(intern!(py, "_modules"))?)?.into_iter().rev() {
            if !below.is_none() {
                steps.push(Step::Enter(join(&path, &name)?, below));
            }
        }
        found.push((path, module));
    }
    Ok(found)
}

/// Returns parameters, then buffers.
fn registered_tensors<'py>(
    model: &Bound<'py, PyAny>,
    module_class: &Bound<'py, PyType>,
    modules: &Named<'py>,
) -> PyResult<Named<'py>> {
    let (py, mut found) = (model.py(), Named::new());
    // A class can override the names of its parameters, as FSDP does.
    let methods = ["named_parameters", "named_buffers"];
    let mut is_usual = true;
    for method in methods {
        is_usual &= model.get_type().getattr(method)?.is(&module_class.getattr(method)?);
    }
    if !is_usual {
        let with_duplicates = PyDict::new(py);
        with_duplicates.set_item("remove_duplicate", false)?;
        for method in methods {
            for pair in model.call_method(method, (), Some(&with_duplicates))?.try_iter()? {
                found.push(pair?.extract()?);
            }
        }
        return Ok(found);
    }
    for registered in [intern!(py, "_parameters"), intern!(py, "_buffers")] {
        for (path, module) in modules {
            for (name, tensor) in entries(&module.getattr(registered)?)? {
                if !tensor.is_none() {
                    found.push((join(path, &name)?, tensor));
                }
            }
        }
    }
    Ok(found)
}

/// Returns tensors that are plain attributes of modules.
fn attributes<'py>(modules: Named<'py>, tensor_class: &Bound<'py, PyType>) -> PyResult<Named<'py>> {
    let mut classes = TensorClasses::new(tensor_class);
    let (mut found, mut seen) = (Named::new(), FxHashSet::default());
    for (path, module) in modules {
        if !seen.insert(module.as_ptr() as usize) {
            continue;
        }
        for (name, tensor) in values_that(&attributes_of(&module)?, |value| classes.is_tensor(value)) {
            found.push((join(&path, &name)?, tensor));
        }
    }
    Ok(found)
}

/// Returns `vars(module)`.
fn attributes_of<'py>(module: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
    Ok(module.getattr(intern!(module.py(), "__dict__"))?.cast_into::<PyDict>()?)
}

fn join(path: &str, name: &Bound<PyAny>) -> PyResult<String> {
    let name = name.str()?;
    let name = name.to_string_lossy();
    Ok(if path.is_empty() { name.into_owned() } else { format!("{path}.{name}") })
}

/// Returns each tensor at its first position, with all of its names.
fn each_once(found: Named) -> Named {
    let mut places: FxHashMap<usize, usize> = FxHashMap::default();
    let mut once: Vec<(String, Bound<PyAny>)> = Vec::with_capacity(found.len());
    let mut names_of: FxHashMap<usize, Vec<String>> = FxHashMap::default(); // Of tensors that have several.
    for (name, tensor) in found {
        let place = *places.entry(tensor.as_ptr() as usize).or_insert(once.len());
        match once.get(place) {
            None => once.push((name, tensor)),
            Some((first, _)) => {
                let names = names_of.entry(place).or_insert_with(|| vec![first.clone()]);
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
    }
    for (place, names) in names_of {
        once[place].0 = names.join("+");
    }
    once
}
