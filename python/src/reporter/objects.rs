//! Finds tensors among all objects of the process.

use pyo3::prelude::*;
use pyo3::types::{PyList, PyWeakrefMethods, PyWeakrefReference};
use rustc_hash::FxHashSet;

use super::getters::{call, references};

/// Slots of the filter for types: many more than the number of tensor classes.
const FILTER: usize = 4096;

/// Addresses of objects, which identify them.
pub fn addresses(objects: &Bound<PyList>) -> FxHashSet<usize> {
    objects.iter().map(|object| object.as_ptr() as usize).collect()
}

/// Returns the objects whose type is one of `types`, in their order.
///
/// Checks only the type, because an object's class may be wrong.
#[pyfunction]
pub fn of_types<'py>(objects: &Bound<'py, PyList>, types: Vec<Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyList>> {
    let mut wanted: Vec<usize> = types.iter().map(|kind| kind.as_ptr() as usize).collect();
    wanted.sort_unstable();
    // Nearly all objects have none of these types, and one look at the filter shows that.
    let slot = |kind: usize| (kind >> 4) % FILTER;
    let mut filter = [false; FILTER];
    wanted.iter().for_each(|&kind| filter[slot(kind)] = true);
    let found = PyList::empty(objects.py());
    for object in objects {
        let kind = object.get_type_ptr() as usize;
        if filter[slot(kind)] && wanted.binary_search(&kind).is_ok() {
            found.append(object)?;
        }
    }
    Ok(found)
}

/// Returns the objects that `references` refer to, and those of `others` that are not among them.
#[pyfunction]
pub fn referents<'py>(references: &Bound<'py, PyList>, others: &Bound<'py, PyList>) -> PyResult<Bound<'py, PyList>> {
    let fresh = addresses(others);
    let mut known = FxHashSet::default();
    let found = PyList::empty(references.py());
    for reference in references {
        if let Some(object) = reference.cast::<PyWeakrefReference>()?.upgrade() {
            if !fresh.is_empty() && fresh.contains(&(object.as_ptr() as usize)) {
                known.insert(object.as_ptr() as usize);
            }
            found.append(object)?;
        }
    }
    for object in others {
        if !known.contains(&(object.as_ptr() as usize)) {
            found.append(object)?;
        }
    }
    Ok(found)
}

/// Returns `objects` without those in `left_out`.
#[pyfunction]
pub fn without<'py>(objects: &Bound<'py, PyList>, left_out: &Bound<'py, PyList>) -> PyResult<Bound<'py, PyList>> {
    let left_out = addresses(left_out);
    let found = PyList::empty(objects.py());
    for object in objects.iter().filter(|object| !left_out.contains(&(object.as_ptr() as usize))) {
        found.append(object)?;
    }
    Ok(found)
}

/// See `_native.pyi`.
#[pyfunction]
pub fn held_alone<'py>(
    use_count: &Bound<'py, PyAny>,
    tensors: &Bound<'py, PyList>,
    unheld: &Bound<'py, PyList>,
) -> PyResult<(Bound<'py, PyList>, Bound<'py, PyList>)> {
    let wanted = references(&unheld.get_item(0)?) + 1;
    let (held, alone) = (PyList::empty(tensors.py()), PyList::empty(tensors.py()));
    for tensor in tensors {
        let is_alone = references(&tensor) == wanted && call(use_count, &tensor)?.extract::<usize>()? > 1;
        if is_alone { &alone } else { &held }.append(tensor)?;
    }
    Ok((held, alone))
}
