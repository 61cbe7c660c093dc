//! Memory of a program at any batch size, from recordings at several; and cards by name.

use std::path::PathBuf;

use memlab_predict::allocator::{Card, Settings};
use memlab_predict::plan::{Holding, PeakView, Program, Recording, Search, Steadiness};
use memlab_trace::{BlockLayer, Category, Line};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// A program at any batch size.
#[pyclass(frozen, name = "PlanFamily", module = "memlab._native")]
pub struct PlanFamily {
    program: Program,
}

/// (file, line, function); `None`: outside Python.
type LineName = Option<(String, Option<u32>, String)>;

/// (allocated, completed steps, phase, line of the last allocation, its layer, and (name, bytes, blocks) by category, line
/// and layer).
///
/// A layer is `None` outside of all layers.
type Peak = (
    u64,
    usize,
    &'static str,
    LineName,
    Option<String>,
    Vec<(&'static str, u64, u64)>,
    Vec<(LineName, u64, u64)>,
    Vec<(Option<String>, u64, u64)>,
);

#[pymethods]
impl PlanFamily {
    /// Reads the traces of one program: (batch size, file), two or more.
    ///
    /// `harness` is the folder of code that only runs the program. Its lines count only if no other lines are on the stack.
    #[new]
    fn new(py: Python, traces: Vec<(u64, PathBuf)>, harness: String) -> PyResult<PlanFamily> {
        let read = |(batch, path): (u64, PathBuf)| match Recording::read_under(&path, &harness) {
            Ok(recording) => Ok((batch, recording)),
            Err(error) => Err(format!("{}: {error}", path.display())),
        };
        let program = py.detach(|| {
            let recordings = traces.into_iter().map(read).collect::<Result<_, _>>()?;
            Program::of_recordings(recordings).map_err(|error| error.to_string())
        });
        program.map(|program| PlanFamily { program }).map_err(PyValueError::new_err)
    }

    /// Batch sizes of the traces, in order.
    #[getter]
    fn recorded_batches(&self) -> Vec<u64> {
        self.program.recorded_batches()
    }

    /// Returns true if a batch size is so far from the recorded ones that kernels may choose other algorithms.
    fn is_far(&self, batch: u64) -> bool {
        self.program.is_far(batch)
    }

    /// Bytes of the device held outside PyTorch's allocator, by libraries.
    #[getter]
    fn outside(&self) -> u64 {
        self.program.last().recording.outside
    }

    /// Returns, for the two recordings from which a batch size is planned: (number of allocations at the larger batch
    /// without a counterpart at the smaller one, number of all allocations, peak bytes of the former, the smaller batch, the
    /// larger).
    fn unmatched(&self, batch: u64) -> (usize, usize, u64, u64, u64) {
        let (family, _) = self.program.at(Some(batch));
        let (low, high) = family.recorded_batches().unwrap_or_default();
        (family.unmatched, family.recording.allocations.len(), family.unmatched_bytes, low, high)
    }

    /// Lines that read values back from the device, and the number of reads of each.
    #[getter]
    fn read_backs(&self) -> Vec<(LineName, u64)> {
        let read_backs = self.program.last().recording.read_backs.iter();
        read_backs.map(|read| (read.line.as_deref().map(line_name), read.count)).collect()
    }

    /// Warnings of the trace about itself.
    #[getter]
    fn warnings(&self) -> Vec<String> {
        self.program.last().recording.model.warnings().to_vec()
    }

    /// Returns (allocated, reserved, memory of the smallest card, steadiness, bytes that each step keeps).
    ///
    /// `context`: bytes of the card that belong neither to the allocator nor to the libraries.
    fn needs(
        &self,
        py: Python,
        batch: u64,
        settings: &str,
        context: u64,
    ) -> PyResult<(u64, u64, u64, &'static str, u64)> {
        let search = self.search(settings, context)?;
        let needs = py.detach(|| search.needs(Some(batch)));
        let (steadiness, kept) = match needs.planned.steadiness {
            Steadiness::After(_) => ("steady", 0),
            Steadiness::Grows(bytes) => ("grows", bytes),
            Steadiness::NotYet => ("not yet", 0),
            Steadiness::Unknown => ("unknown", 0),
        };
        let counters = needs.planned.counters;
        Ok((counters.allocated.peak, counters.reserved.peak, needs.least, steadiness, kept))
    }

    /// Returns the largest batch that runs on a card with `memory` bytes; 0 if none does.
    fn largest_batch(&self, py: Python, memory: u64, settings: &str, context: u64) -> PyResult<u64> {
        let search = self.search(settings, context)?;
        Ok(py.detach(|| search.largest_batch(memory)))
    }

    /// Returns the memory at the peak of allocated bytes.
    fn peak(&self, py: Python, batch: u64, settings: &str) -> PyResult<Peak> {
        let search = self.search(settings, 0)?;
        let view = py.detach(|| {
            let (family, batch) = self.program.at(Some(batch));
            let sizes = family.sizes(batch);
            let planned = family.run(&sizes, search.settings(), Card::UNLIMITED);
            family.peak(&planned, &sizes, search.settings())
        });
        let PeakView { allocated, step, phase, line, layer, categories, lines, layers, stage: _ } = view;
        Ok((
            allocated,
            step,
            phase.as_str(),
            line.as_deref().map(line_name),
            layer_name(&layer),
            named(&categories, |category| category.as_str()),
            named(&lines, |line| line.as_deref().map(line_name)),
            named(&layers, layer_name),
        ))
    }

    /// Returns the peak bytes of tensors that autograd saves, in one step.
    fn activation_bytes(&self, batch: u64) -> u64 {
        let (family, batch) = self.program.at(Some(batch));
        family.recording.most_held_in_first_step(Category::Activation, &family.sizes(batch))
    }
}

impl PlanFamily {
    fn search(&self, settings: &str, context: u64) -> PyResult<Search<'_>> {
        let settings = Settings::parse(settings).map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(Search::of_program(&self.program, settings, context))
    }
}

fn named<K, N>(holdings: &[(K, Holding)], name: impl Fn(&K) -> N) -> Vec<(N, u64, u64)> {
    holdings.iter().map(|(key, holding)| (name(key), holding.bytes, holding.blocks)).collect()
}

fn line_name(line: &Line) -> (String, Option<u32>, String) {
    (line.file.to_string(), line.line, line.function.to_string())
}

fn layer_name(layer: &BlockLayer) -> Option<String> {
    layer.name.as_deref().map(str::to_owned)
}

/// Returns (name as in CUDA, bytes, bytes of the context, true if these were measured) of a card by its name or size.
#[pyfunction]
pub fn card(text: &str) -> PyResult<(String, u64, u64, bool)> {
    let model = simgpu_cards::find(text).map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok((model.device_name.to_owned(), model.memory, model.context.bytes, model.context.is_measured))
}
