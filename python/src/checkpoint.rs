//! The tensors of a checkpoint.

use std::path::PathBuf;

use memlab_paging::checkpoint;
use pyo3::prelude::*;

use crate::error::raised;

/// Name, file, dtype, shape, offset in the file, bytes.
type Row = (String, String, String, Vec<usize>, u64, u64);

/// Returns the tensors of a `.safetensors` file, of an index of several files, or of a folder with either: (name, file,
/// dtype in the spelling of safetensors, shape, offset in the file, bytes).
#[pyfunction]
pub fn checkpoint_tensors(py: Python, path: PathBuf) -> PyResult<Vec<Row>> {
    let tensors = py.detach(|| checkpoint::tensors(&path)).map_err(raised)?;
    let row = |t: checkpoint::Tensor| -> PyResult<Row> {
        let file = t.path.into_os_string().into_string();
        let file = file.map_err(|path| pyo3::exceptions::PyValueError::new_err(format!("{path:?} is not UTF-8")))?;
        Ok((t.name, file, t.dtype, t.shape, t.offset, t.bytes))
    };
    tensors.into_iter().map(row).collect()
}
