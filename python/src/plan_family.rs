//! What a program takes at any batch size, from recordings at two; and cards by name.

use std::path::PathBuf;

use memlab_allocator::{Card, Settings};
use memlab_plan::{Family, Holding, PeakView, Recording, Search, Steadiness};
use memlab_trace::{BlockLayer, Category, Line};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// A program at any batch size.
#[pyclass(frozen, name = "PlanFamily", module = "memlab._native")]
pub struct PlanFamily {
    family: Family,
}

/// (file, line, function); `None`: outside Python.
type LineName = Option<(String, Option<u32>, String)>;

/// (allocated, steps that had ended, phase, the line that asked for the last block, its layer, and (name, bytes, blocks) by
/// category, line and layer). A layer is `None` outside of all.
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
    /// Reads the traces of one program at two batch sizes.
    #[new]
    fn new(
        py: Python,
        low_trace: PathBuf,
        low_batch: u64,
        high_trace: PathBuf,
        high_batch: u64,
    ) -> PyResult<PlanFamily> {
        let read = |path: &PathBuf| Recording::read(path).map_err(|error| format!("{}: {error}", path.display()));
        let family = py.detach(|| {
            let (low, high) = (read(&low_trace)?, read(&high_trace)?);
            Family::of_two((low_batch, low), (high_batch, high)).map_err(|error| error.to_string())
        });
        family.map(|family| PlanFamily { family }).map_err(PyValueError::new_err)
    }

    /// Bytes of the device that were held outside PyTorch's allocator: libraries.
    #[getter]
    fn outside(&self) -> u64 {
        self.family.recording.outside
    }

    /// (how many allocations at the larger batch have no counterpart at the smaller one, how many there are, the most bytes of
    /// the former at once).
    #[getter]
    fn unmatched(&self) -> (usize, usize, u64) {
        (self.family.unmatched, self.family.recording.allocations.len(), self.family.unmatched_bytes)
    }

    /// Lines that read values back from the device, and how often each did.
    #[getter]
    fn read_backs(&self) -> Vec<(LineName, u64)> {
        let read_backs = self.family.recording.read_backs.iter();
        read_backs.map(|read| (read.line.as_deref().map(line_name), read.count)).collect()
    }

    /// What the trace says of itself.
    #[getter]
    fn warnings(&self) -> Vec<String> {
        self.family.recording.model.warnings().to_vec()
    }

    /// (allocated, reserved, memory of the smallest card, steadiness, bytes that each step keeps). `context`: bytes of the
    /// card that are neither the allocator's nor the libraries'.
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

    /// The largest batch that runs on a card with `memory` bytes; 0 if none does.
    fn largest_batch(&self, py: Python, memory: u64, settings: &str, context: u64) -> PyResult<u64> {
        let search = self.search(settings, context)?;
        Ok(py.detach(|| search.largest_batch(memory)))
    }

    /// What is held when most is allocated.
    fn peak(&self, py: Python, batch: u64, settings: &str) -> PyResult<Peak> {
        let settings = self.settings(settings)?;
        let view = py.detach(|| {
            let sizes = self.family.sizes(Some(batch));
            let planned = self.family.run(&sizes, &settings, Card::ENDLESS);
            self.family.peak(&planned, &sizes, &settings)
        });
        let PeakView { allocated, step, phase, line, layer, categories, lines, layers } = view;
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

    /// The most bytes at once of tensors that autograd saves, in one step.
    fn activation_bytes(&self, batch: u64) -> u64 {
        self.family.recording.most_held_in_first_step(Category::Activation, &self.family.sizes(Some(batch)))
    }
}

impl PlanFamily {
    fn settings(&self, text: &str) -> PyResult<Settings> {
        let settings = Settings::parse(text).map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(settings.for_torch(self.family.recording.torch_version()))
    }

    fn search(&self, settings: &str, context: u64) -> PyResult<Search<'_>> {
        Ok(Search::new(&self.family, self.settings(settings)?, context + self.family.recording.outside))
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

/// (name as CUDA has it, bytes, bytes of the context, whether these were measured) of a card by its name or size.
#[pyfunction]
pub fn card(text: &str) -> PyResult<(String, u64, u64, bool)> {
    let model = simgpu_cards::find(text).map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok((model.device_name.to_owned(), model.memory, model.context.bytes, model.context.is_measured))
}
