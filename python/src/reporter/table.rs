//! Tensors of a report, with their names and their memory.

use pyo3::prelude::*;
use pyo3::types::{PyInt, PyList, PyString};
use rustc_hash::{FxHashMap, FxHashSet};

use super::blocks::{LiveBlocks, Remainder, UnseenRow, rounded};
use super::names::TensorNames;
use super::objects::addresses;
use super::reader::{Reading, TensorMemory, TensorReader};
use super::shapes::Shapes;

/// A tensor, or a part of one.
struct Row {
    name: Py<PyString>,
    memory: TensorMemory,
}

/// See `_native.pyi`.
#[pyclass(module = "memlab._native")]
pub struct TensorTable {
    rows: Vec<Row>,
    shapes: Shapes,
    #[pyo3(get)]
    devices: Vec<String>,
    blocks: LiveBlocks,
    is_tracked: bool,
    /// Addresses of tensors that are gradients of others.
    gradients: FxHashSet<usize>,
}

#[pymethods]
impl TensorTable {
    #[new]
    fn new<'py>(
        reader: &Bound<'py, TensorReader>,
        names: &Bound<'py, TensorNames>,
        named: &Bound<'py, PyList>,
        others: &Bound<'py, PyList>,
        is_tracked: bool,
    ) -> PyResult<Self> {
        let blocks = if is_tracked { LiveBlocks::now(reader.py()) } else { LiveBlocks::default() };
        let (mut shapes, mut devices) = (Shapes::default(), Vec::new());
        let reading = Reading::new(reader.get(), &blocks, &mut shapes, &mut devices);
        let rows = Vec::with_capacity(named.len() + others.len());
        let mut adding = Adding { reading, names, named: addresses(named), rows };
        let mut gradients = FxHashSet::default();
        let mut gradient_of = |tensor: &Bound<'py, PyAny>| -> PyResult<_> {
            let gradient = reader.get().gradient_of(tensor)?;
            gradients.extend(gradient.as_ref().map(|gradient| gradient.as_ptr() as usize));
            Ok(gradient)
        };
        for tensor in named {
            let gradient = gradient_of(&tensor)?;
            adding.add(&tensor, gradient)?;
        }
        // A gradient appears only behind its tensor, so all gradients have to be known first.
        let others: Vec<_> =
            others.iter().map(|tensor| Ok((gradient_of(&tensor)?, tensor))).collect::<PyResult<_>>()?;
        for (gradient, tensor) in others {
            if !gradients.contains(&(tensor.as_ptr() as usize)) {
                adding.add(&tensor, gradient)?;
            }
        }
        let rows = adding.rows;
        Ok(Self { rows, shapes, devices, blocks, is_tracked, gradients })
    }

    fn add_hidden<'py>(
        &mut self,
        reader: &Bound<'py, TensorReader>,
        names: &Bound<'py, TensorNames>,
        tensors: &Bound<'py, PyList>,
    ) -> PyResult<()> {
        let seen: FxHashSet<i64> = self.rows.iter().map(|row| row.memory.key).collect();
        let no_blocks = LiveBlocks::default();
        let mut reading = Reading::new(reader.get(), &no_blocks, &mut self.shapes, &mut self.devices);
        for tensor in tensors {
            let is_gradient = self.gradients.contains(&(tensor.as_ptr() as usize));
            if is_gradient || (self.is_tracked && reader.get().is_cuda(&tensor)?) {
                continue; // It already has a row, or the tracker identifies it.
            }
            let parts = reading.parts(&tensor)?;
            if parts.iter().all(|(_, memory)| !seen.contains(&memory.key)) {
                let name = names.try_borrow_mut()?.of(&tensor)?;
                self.rows.extend(parts.into_iter().map(|part| row_of(&name, part)));
            }
        }
        Ok(())
    }

    fn columns<'py>(&self, py: Python<'py>, device: &str, card: Option<i32>) -> PyResult<Columns<'py>> {
        let rows = self.rows_on(device);
        let owners = owners(&rows);
        let blocks = card.and_then(|card| self.blocks.of(card));
        let mut remainder = blocks.map(Remainder::of);
        let mut foreign = 0;
        let size = |(place, row): (usize, &&Row)| {
            let needed = if owners.get(place).is_some_and(|&owner| owner != place) { 0 } else { row.memory.nbytes };
            match (&mut remainder, row.memory.block) {
                (Some(remainder), Some(block)) => remainder.take(block, needed),
                _ => {
                    foreign += rounded(needed);
                    rounded(needed)
                }
            }
        };
        let sizes = integers(py, rows.iter().enumerate().map(size).collect())?;
        let shares = (0..rows.len()).map(|place| match owners.get(place) {
            Some(&owner) if owner != place => Some(rows[owner].name.bind(py)),
            _ => None,
        });
        let shapes = || rows.iter().map(|row| &self.shapes.seen[row.memory.shape]);
        Ok(Columns {
            names: PyList::new(py, rows.iter().map(|row| row.name.bind(py)))?,
            shapes: PyList::new(py, shapes().map(|shape| shape.text.bind(py)))?,
            elements: PyList::new(py, shapes().map(|shape| shape.elements.bind(py)))?,
            shares: PyList::new(py, shares)?,
            sizes,
            foreign: if card.is_some() { foreign } else { 0 },
            unseen: remainder.as_ref().map(|remainder| remainder.unseen(py)).unwrap_or_default(),
            unseen_blocks: remainder.map(|remainder| remainder.unseen_blocks()).unwrap_or_default(),
            outside: blocks.map(|blocks| blocks.outside()).unwrap_or_default(),
        })
    }
}

/// Columns of a report for a device.
#[derive(IntoPyObject)]
pub struct Columns<'py> {
    names: Bound<'py, PyList>,
    shapes: Bound<'py, PyList>,
    elements: Bound<'py, PyList>,
    sizes: Bound<'py, PyList>,
    shares: Bound<'py, PyList>,
    foreign: u64,
    unseen: Vec<UnseenRow>,
    /// Addresses of the blocks of `unseen`, without those of libraries.
    unseen_blocks: Vec<u64>,
    outside: Vec<(&'static str, u64)>,
}

impl TensorTable {
    /// Returns the rows of a device.
    ///
    /// An empty tensor counts only if it keeps memory alive, as `x[:0]` does.
    fn rows_on(&self, device: &str) -> Vec<&Row> {
        let Some(place) = self.devices.iter().position(|known| known == device) else { return Vec::new() };
        let counts = |row: &&Row| {
            let memory = &row.memory;
            memory.device == place
                && (memory.nbytes > 0 || device == "meta" || !self.shapes.seen[memory.shape].is_empty)
        };
        self.rows.iter().filter(counts).collect()
    }
}

/// Returns, for each row, the index of the first row with the same memory.
///
/// That row counts the memory, and the others share it. Empty if no memory is shared.
fn owners(rows: &[&Row]) -> Vec<usize> {
    let mut first: FxHashMap<i64, usize> = FxHashMap::with_capacity_and_hasher(rows.len(), Default::default());
    let owners = rows.iter().enumerate().map(|(place, row)| *first.entry(row.memory.key).or_insert(place)).collect();
    if first.len() < rows.len() { owners } else { Vec::new() }
}

/// Rows of a table under construction.
struct Adding<'a, 'py> {
    reading: Reading<'a, 'py>,
    names: &'a Bound<'py, TensorNames>,
    /// Addresses of the tensors that have their own rows, even if they are gradients.
    named: FxHashSet<usize>,
    rows: Vec<Row>,
}

impl<'py> Adding<'_, 'py> {
    fn add(&mut self, tensor: &Bound<'py, PyAny>, gradient: Option<Bound<'py, PyAny>>) -> PyResult<()> {
        let name = self.names.try_borrow_mut()?.of(tensor)?;
        self.add_as(&name, tensor)?;
        match gradient {
            Some(gradient) if !self.named.contains(&(gradient.as_ptr() as usize)) => {
                let name = PyString::new(name.py(), &format!("{}.grad", name.to_string_lossy()));
                self.add_as(&name, &gradient)
            }
            _ => Ok(()),
        }
    }

    fn add_as(&mut self, name: &Bound<'py, PyString>, tensor: &Bound<'py, PyAny>) -> PyResult<()> {
        match self.reading.plain(tensor)? {
            Some(memory) => self.rows.push(Row { name: name.clone().unbind(), memory }),
            None => self.rows.extend(self.reading.parts(tensor)?.into_iter().map(|part| row_of(name, part))),
        }
        Ok(())
    }
}

fn row_of(name: &Bound<PyString>, (suffix, memory): (String, TensorMemory)) -> Row {
    let name = match suffix.is_empty() {
        true => name.clone(),
        false => PyString::new(name.py(), &format!("{}{suffix}", name.to_string_lossy())),
    };
    Row { name: name.unbind(), memory }
}

/// Integers for Python.
///
/// Equal neighbours share one object.
fn integers(py: Python, values: Vec<u64>) -> PyResult<Bound<PyList>> {
    let mut last = (0, 0u64.into_pyobject(py)?);
    let mut integer = |value| {
        if value != last.0 {
            last = (value, value.into_pyobject(py)?);
        }
        Ok(last.1.clone())
    };
    let integers: PyResult<Vec<Bound<PyInt>>> = values.into_iter().map(&mut integer).collect();
    PyList::new(py, integers?)
}
