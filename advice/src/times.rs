//! How long things take on the GPU, as far as the trace says.

use memlab_plan::Recording;
use memlab_trace::GpuWorkView;

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
}
