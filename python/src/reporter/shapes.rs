//! Shapes of tensors.
//!
//! Few of them differ.

use pyo3::prelude::*;
use pyo3::types::{PyInt, PyString};
use rustc_hash::FxHashMap;

/// A shape, as shown in reports.
pub struct Shape {
    pub text: Py<PyString>,
    pub elements: Py<PyInt>,
    pub is_empty: bool,
}

/// Shapes seen so far.
#[derive(Default)]
pub struct Shapes {
    pub seen: Vec<Shape>,
    places: FxHashMap<Vec<i64>, usize>,
    last: Vec<i64>,
    last_place: Option<usize>,
}

impl Shapes {
    /// Returns the index of a shape in `seen`.
    pub fn place_of(&mut self, py: Python, dimensions: &[i64]) -> PyResult<usize> {
        if let Some(place) = self.last_place.filter(|_| self.last == dimensions) {
            return Ok(place);
        }
        let place = match self.places.get(dimensions) {
            Some(&place) => place,
            None => self.add_dimensions(py, dimensions)?,
        };
        self.last.clear();
        self.last.extend_from_slice(dimensions);
        self.last_place = Some(place);
        Ok(place)
    }

    fn add_dimensions(&mut self, py: Python, dimensions: &[i64]) -> PyResult<usize> {
        let text = match dimensions {
            [] => "(1,)".to_owned(), // A scalar is shown as one element, as pytorch_memlab does.
            [one] => format!("({one},)"),
            all => format!("({})", all.iter().map(i64::to_string).collect::<Vec<_>>().join(", ")),
        };
        let place = self.add(py, &text, dimensions.iter().product())?;
        self.places.insert(dimensions.to_vec(), place);
        Ok(place)
    }

    /// Adds a shape with a given text.
    pub fn add(&mut self, py: Python, text: &str, elements: i64) -> PyResult<usize> {
        let (text, is_empty) = (PyString::new(py, text).unbind(), elements == 0);
        self.seen.push(Shape { text, elements: elements.into_pyobject(py)?.unbind(), is_empty });
        Ok(self.seen.len() - 1)
    }
}
