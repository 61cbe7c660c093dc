//! Detects which objects are tensors.

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyType;
use rustc_hash::FxHashMap;

/// Detects tensors by their types only.
///
/// An object's `__class__` may be wrong, and reading it may raise.
pub struct TensorClasses<'a, 'py> {
    tensor: &'a Bound<'py, PyType>,
    known: FxHashMap<usize, bool>,
}

impl<'a, 'py> TensorClasses<'a, 'py> {
    /// `tensor`: the class `torch.Tensor`.
    pub fn new(tensor: &'a Bound<'py, PyType>) -> Self {
        Self { tensor, known: FxHashMap::default() }
    }

    /// Returns true if an object's type is `torch.Tensor` or derived from it.
    ///
    /// Runs no code of the object.
    pub fn is_tensor(&mut self, object: &Bound<'py, PyAny>) -> bool {
        let kind = object.get_type_ptr();
        let ask = || {
            // SAFETY: the object keeps its type alive, and `self` the other.
            unsafe { ffi::PyType_IsSubtype(kind, self.tensor.as_type_ptr()) != 0 }
        };
        *self.known.entry(kind as usize).or_insert_with(ask)
    }
}
