//! How long things take, as far as the trace says.

use memlab_plan::Recording;
use memlab_trace::{BlockLayer, GpuWorkView};
use rustc_hash::FxHashMap;

use crate::modules::Modules;

/// Measured times; none if GPU times were not recorded. They are those of the GPU, as long as it is what a step waits for;
/// if it waits for its host, what runs on it takes longer by as much as steps do.
pub(crate) struct Times {
    work: Option<GpuWorkView>,
    waits: Option<Waits>,
    /// What the link between the device and the host carries in one direction.
    link_bytes_per_second: Option<u64>,
    steps: u64,
}

/// So many hundredths of a forward's time are planned to be filled by `memlab.offload_activations` with copies.
const FILLED: u128 = 80;

impl Times {
    pub fn of(recording: &Recording) -> Times {
        Times {
            work: recording.model.gpu_work(recording.device),
            waits: Waits::of(recording),
            link_bytes_per_second: recording.model.device(recording.device).and_then(|view| view.link_bytes_per_second),
            steps: recording.steps.len().max(1) as u64,
        }
    }

    /// How long the forwards of a step take.
    fn forward(&self) -> Option<u64> {
        let layers = &self.work.as_ref()?.layers;
        Some(self.with_waits(layers.iter().map(|layer| layer.forward_nanoseconds).sum::<u64>() / self.steps))
    }

    fn with_waits(&self, nanoseconds: u64) -> u64 {
        self.waits.as_ref().map_or(nanoseconds, |waits| waits.added_to(nanoseconds))
    }

    /// What the link carries in one direction while the forwards of a step run.
    pub fn hidden_bytes(&self) -> Option<u64> {
        let bytes = u128::from(self.forward()?) * u128::from(self.link_bytes_per_second?) / NANOSECONDS * FILLED / 100;
        Some(u64::try_from(bytes).unwrap_or(u64::MAX))
    }

    /// By how much a step is longer that copies bytes to the host and back: what the link cannot hide is waited for.
    pub fn not_hidden(&self, bytes: u64) -> Option<u64> {
        let waits = bytes.saturating_sub(self.hidden_bytes()?);
        let waited = 2 * u128::from(waits) * NANOSECONDS / u128::from(self.link_bytes_per_second?.max(1));
        Some(u64::try_from(waited).unwrap_or(u64::MAX))
    }

    /// How long a forward of each module takes, in nanoseconds.
    pub fn forwards(&self, modules: &Modules, depth: usize) -> Option<Vec<u64>> {
        let work = self.work.as_ref()?;
        let mut times = vec![0_u64; modules.list.len()];
        for layer in &work.layers {
            let module = layer.name.as_deref().and_then(|name| crate::modules::Module::around(layer.root, name, depth));
            if let Some(index) = module.and_then(|module| modules.list.iter().position(|listed| *listed == module)) {
                times[index] += layer.totals.nanoseconds.saturating_sub(layer.backward_nanoseconds);
            }
        }
        let each = times.iter().zip(&modules.forwards).map(|(time, forwards)| time / (*forwards).max(1));
        Some(each.map(|time| self.with_waits(time)).collect())
    }

    /// How long the forwards of a layer, without those inside it, take in a step.
    pub fn forward_of_a_step(&self, layer: &BlockLayer, steps: usize) -> Option<u64> {
        let layers = &self.work.as_ref()?.layers;
        let row = layers.iter().find(|row| (row.root, &row.name) == (layer.root, &layer.name))?;
        Some(self.with_waits(row.totals.nanoseconds.saturating_sub(row.backward_nanoseconds) / steps.max(1) as u64))
    }

    /// How long it takes to copy bytes to pageable host memory and back, by the copies of the run.
    pub fn pageable_round_trip(&self, bytes: u64) -> Option<u64> {
        Some(self.copied("device", "pageable", bytes)? + self.copied("pageable", "device", bytes)?)
    }

    fn copied(&self, from: &str, to: &str, bytes: u64) -> Option<u64> {
        let name = format!("copy {from} to {to}");
        let copies = self.work.as_ref()?.kernels.iter().find(|kernel| *kernel.name == *name)?.totals;
        // Small copies take as long as their start.
        let is_telling = copies.calls > 0 && copies.bytes / copies.calls >= SMALLEST_TELLING_COPY;
        let nanoseconds = u128::from(bytes) * u128::from(copies.nanoseconds) / u128::from(copies.bytes.max(1));
        is_telling.then(|| u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }
}

/// Steps of a GPU that waits for its host.
struct Waits {
    /// How long a step takes, and how long what it launches runs: those of the median step, in nanoseconds.
    step: u64,
    work: u64,
}

/// A GPU waits for its host if steps are longer than what runs in them by so many hundredths. (Short waits are for copies.)
const WAITS: u64 = 130;

impl Waits {
    fn of(recording: &Recording) -> Option<Waits> {
        let ends: FxHashMap<u64, u64> =
            recording.model.steps().iter().map(|step| (step.index, step.end_time)).collect();
        let work = recording.model.step_work(recording.device);
        let mut steps: Vec<Waits> = work
            .iter()
            .filter(|work| work.steps == 1 && work.nanoseconds > 0)
            .filter_map(|work| {
                let (began, ended) = (ends.get(&work.step.checked_sub(1)?)?, ends.get(&work.step)?);
                Some(Waits { step: ended.saturating_sub(*began), work: work.nanoseconds })
            })
            .collect();
        steps.sort_unstable_by_key(|waits| waits.added_to(1 << 20));
        let middle = steps.len() / 2;
        steps.into_iter().nth(middle).filter(|waits| waits.step > waits.work / 100 * WAITS)
    }

    fn added_to(&self, nanoseconds: u64) -> u64 {
        let all = u128::from(nanoseconds) * u128::from(self.step) / u128::from(self.work);
        u64::try_from(all).unwrap_or(u64::MAX)
    }
}

/// Of a second.
const NANOSECONDS: u128 = 1_000_000_000;

const SMALLEST_TELLING_COPY: u64 = 1 << 20;
