//! `choose_recomputation`.

use memlab_paging::recomputation::{Forward, Operation};
use pyo3::prelude::*;

use crate::error::raised;

/// (nanoseconds, inputs, outputs, true if it can run again).
///
/// Values are numbered.
type OperationTuple = (u64, Vec<usize>, Vec<usize>, bool);

/// Chooses the operations of a forward to run again in backward, and the values to store: (repeated, stored).
///
/// `values`: (bytes, true if backward needs it). `room`: bytes that can be stored at no cost; each byte beyond takes
/// `ns_per_byte`.
#[pyfunction]
pub fn choose_recomputation(
    py: Python,
    operations: Vec<OperationTuple>,
    values: Vec<(u64, bool)>,
    room: u64,
    ns_per_byte: f64,
) -> PyResult<(Vec<bool>, Vec<bool>)> {
    let operation = |(ns, inputs, outputs, repeatable)| Operation { ns, inputs, outputs, repeatable };
    let (bytes, needed) = values.into_iter().unzip();
    let operations = operations.into_iter().map(operation).collect();
    let forward = Forward { operations, bytes, needed, room, ns_per_byte };
    let choice = py.detach(|| forward.choose()).map_err(raised)?;
    Ok((choice.repeated, choice.stored))
}
