//! The holders of the GPU memory of this process, for `memlab.holders`.

use std::time::{Duration, Instant};

use memlab_trace::HeldView;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::library::Library;
use crate::live_books;

/// A search takes no longer: the library gives it up before.
const LIMIT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(2);

/// (names, kind, file, line, function, bytes, releases, blocks, tensors, bytes for backward, keys, cure)
type HolderRow = (Vec<String>, &'static str, String, u32, String, u64, u64, usize, u32, u64, Vec<String>, String);

/// Searches for what holds memory: of the blocks at `addresses`, or of a line, or all.
///
/// Returns the holders, and the bytes in question that no Python object leads to. `line`: the end of a path, and a line
/// number.
#[pyfunction]
#[pyo3(signature = (device=None, addresses=None, line=None))]
pub fn search_holders(
    python: Python<'_>,
    device: Option<i32>,
    addresses: Option<Vec<u64>>,
    line: Option<(String, u32)>,
) -> PyResult<(Vec<HolderRow>, u64)> {
    let has_devices = live_books::current().is_some_and(|live| !live.books.model().devices().is_empty());
    if addresses.is_none() && !has_devices {
        return Ok((Vec::new(), 0));
    }
    let library = Library::get().ok_or_else(|| PyRuntimeError::new_err("memlab does not record this process"))?;
    let number = library.search_holders()?;
    python.detach(|| wait(number))?;
    let live = live_books::current().ok_or_else(|| PyRuntimeError::new_err("memlab keeps no books of this process"))?;
    let model = live.books.model();
    let held = match addresses {
        Some(addresses) => model.holders_of_addresses(number, &addresses).ok_or_else(|| {
            PyValueError::new_err(
                "the tensor has no memory that PyTorch's allocator took from a GPU while memlab recorded",
            )
        })?,
        None => {
            let line = line.as_ref().map(|(file, line)| (file.as_str(), *line));
            model.holders_of_line(number, device, line).ok_or_else(lost)?
        }
    };
    Ok((rows(&held), held.explanation.unreached))
}

fn lost() -> PyErr {
    PyRuntimeError::new_err("the result of the search is not in the recording")
}

fn wait(number: u32) -> PyResult<()> {
    let deadline = Instant::now() + LIMIT;
    while Instant::now() < deadline {
        let live = live_books::current().ok_or_else(lost)?;
        match live.books.model().search_ended(number) {
            Some(Ok(())) => return Ok(()),
            Some(Err(why)) => return Err(PyRuntimeError::new_err(format!("the search failed: {why}"))),
            None => {}
        }
        drop(live);
        std::thread::sleep(POLL);
    }
    Err(lost())
}

fn rows(held: &HeldView) -> Vec<HolderRow> {
    let row = |holder: &memlab_trace::holders::Holder| {
        let (file, line, function) = holder
            .place()
            .map_or((String::new(), 0, String::new()), |at| (at.file.to_owned(), at.line, at.function.to_owned()));
        (
            holder.names(),
            holder.kind(),
            file,
            line,
            function,
            holder.bytes,
            holder.releases,
            holder.blocks,
            holder.tensors,
            holder.for_backward,
            holder.keys.clone(),
            holder.cure(),
        )
    };
    held.explanation.holders.iter().map(row).collect()
}
