//! How long things take on the GPU, as far as the trace says.

use memlab_plan::Recording;
use memlab_trace::{BlockLayer, GpuWorkView};

use crate::modules::Modules;

/// Measured times; none if GPU times were not recorded.
pub(crate) struct Times {
    work: Option<GpuWorkView>,
}

impl Times {
    pub fn of(recording: &Recording) -> Times {
        Times { work: recording.model.gpu_work(recording.device) }
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
        Some(times.iter().zip(&modules.forwards).map(|(time, forwards)| time / (*forwards).max(1)).collect())
    }

    /// How long the forwards of a layer, without those inside it, take in a step.
    pub fn forward_of_a_step(&self, layer: &BlockLayer, steps: usize) -> Option<u64> {
        let layers = &self.work.as_ref()?.layers;
        let row = layers.iter().find(|row| (row.root, &row.name) == (layer.root, &layer.name))?;
        Some(row.totals.nanoseconds.saturating_sub(row.backward_nanoseconds) / steps.max(1) as u64)
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

const SMALLEST_TELLING_COPY: u64 = 1 << 20;
