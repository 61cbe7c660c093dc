//! How long things take, as far as the trace says.

use crate::plan::Recording;
use memlab_trace::{BlockLayer, GpuWorkView};
use rustc_hash::FxHashMap;

use crate::advice::cost::Cost;
use crate::advice::modules::Modules;
use crate::advice::report::HostBoundStep;

/// Measured times; none if GPU times were not recorded. They are those of the GPU, and a step's as long as the GPU is what
/// it waits for.
pub(crate) struct Times {
    work: Option<GpuWorkView>,
    waits: Option<HostBoundStep>,
    /// What the link between the device and the host carries in one direction.
    link_bytes_per_second: Option<u64>,
    /// The steps whose GPU time is known in full, and that time. The recording may hold parts of other steps, too.
    steps: u64,
    of_steps_ns: u64,
    /// All steps.
    all_steps: u64,
}

/// The share of a pass's time that `memlab.offload_activations` is planned to fill with copies.
const COPY_TIME_PERCENT: u128 = 80;

/// Of what a link carries: packets with 256 bytes of data have 24 of framing, address and checksum (PCI Express, gen 3 to 5).
const PACKET_DATA_BYTES: u64 = 256;
const PACKET_BYTES: u64 = 256 + 24;

/// What the link carries in one direction while a step computes.
#[derive(Clone, Copy)]
pub(crate) struct LinkCapacity {
    /// To the host, beside the forwards.
    pub leaving: u64,
    /// Back, beside their backwards.
    pub returning: u64,
}

impl Times {
    pub fn of(recording: &Recording) -> Times {
        let link = recording.model.device(recording.device).and_then(|view| view.link_bytes_per_second);
        let work = recording.model.gpu_work(recording.device);
        let of_steps_ns = recording.model.step_work(recording.device).iter().map(|work| work.nanoseconds).sum();
        let (steps, all_steps) = (recording.model.steps_timed(), recording.model.steps_ended());
        Times {
            work: work.filter(|_| steps > 0 || all_steps == 0),
            waits: host_bound_step(recording),
            link_bytes_per_second: link.map(|link| (link / PACKET_BYTES * PACKET_DATA_BYTES).max(1)),
            steps: steps.max(1),
            of_steps_ns,
            all_steps: all_steps.max(1),
        }
    }

    /// The steps whose GPU waits for its host, if they do. What the GPU takes for a change then says nothing about a step.
    pub fn host_bound_step(&self) -> Option<HostBoundStep> {
        self.waits
    }

    /// What a change costs that takes the GPU so long in a step.
    pub fn cost(&self, gpu_ns: Option<u64>) -> Cost {
        Cost { cost_ns: gpu_ns.filter(|_| self.waits.is_none()), gpu_ns }
    }

    pub fn link_capacity(&self) -> Option<LinkCapacity> {
        let (layers, link) = (&self.work.as_ref()?.layers, u128::from(self.link_bytes_per_second?));
        let carried = |nanoseconds: u64| {
            let bytes = u128::from(self.of_a_step(nanoseconds)) * link / NANOSECONDS * COPY_TIME_PERCENT / 100;
            u64::try_from(bytes).unwrap_or(u64::MAX)
        };
        Some(LinkCapacity {
            leaving: carried(layers.iter().map(|layer| layer.forward_nanoseconds).sum()),
            returning: carried(layers.iter().map(|layer| layer.backward_nanoseconds).sum()),
        })
    }

    /// How long the GPU waits in a step that copies bytes to the host and bytes back, for what the link cannot hide.
    pub fn waiting_for(&self, leaving: u64, returning: u64) -> Option<u64> {
        let capacity = self.link_capacity()?;
        let bytes = leaving.saturating_sub(capacity.leaving) + returning.saturating_sub(capacity.returning);
        let waited = u128::from(bytes) * NANOSECONDS / u128::from(self.link_bytes_per_second?);
        Some(u64::try_from(waited).unwrap_or(u64::MAX))
    }

    /// How long a forward of each module takes, in nanoseconds.
    pub fn forwards(&self, modules: &Modules, depth: usize) -> Option<Vec<u64>> {
        let work = self.work.as_ref()?;
        let mut times = vec![0_u64; modules.list.len()];
        for layer in &work.layers {
            let module =
                layer.name.as_deref().and_then(|name| crate::advice::modules::Module::around(layer.root, name, depth));
            if let Some(index) = module.and_then(|module| modules.list.iter().position(|listed| *listed == module)) {
                times[index] += layer.totals.nanoseconds.saturating_sub(layer.backward_nanoseconds);
            }
        }
        let each = times.iter().zip(&modules.forwards).map(|(time, forwards)| {
            let of_all = u128::from(self.of_a_step(*time)) * u128::from(self.all_steps);
            u64::try_from(of_all).unwrap_or(u64::MAX) / (*forwards).max(1)
        });
        Some(each.collect())
    }

    /// How long the forwards of a layer, without those inside it, take in a step.
    pub fn forward_of_a_step(&self, layer: &BlockLayer) -> Option<u64> {
        let layers = &self.work.as_ref()?.layers;
        let row = layers.iter().find(|row| (row.root, &row.name) == (layer.root, &layer.name))?;
        Some(self.of_a_step(row.totals.nanoseconds.saturating_sub(row.backward_nanoseconds)))
    }

    /// A step's part of what was recorded.
    pub fn of_a_step(&self, nanoseconds: u64) -> u64 {
        let recorded = self.work.as_ref().map_or(0, |work| work.total.nanoseconds);
        if self.of_steps_ns == 0 || recorded == 0 {
            return nanoseconds / self.steps;
        }
        let of_steps = u128::from(nanoseconds) * u128::from(self.of_steps_ns) / u128::from(recorded);
        u64::try_from(of_steps).unwrap_or(u64::MAX) / self.steps
    }

    /// How long it takes to copy bytes to pageable host memory and back, by the copies of the run.
    pub fn pageable_round_trip(&self, bytes: u64) -> Option<u64> {
        Some(self.copied("device", "pageable", bytes)? + self.copied("pageable", "device", bytes)?)
    }

    fn copied(&self, from: &str, to: &str, bytes: u64) -> Option<u64> {
        let name = format!("copy {from} to {to}");
        let copies = self.work.as_ref()?.kernels.iter().find(|kernel| *kernel.name == *name)?.totals;
        // Small copies take as long as their start.
        let is_telling = copies.calls > 0 && copies.bytes / copies.calls >= MIN_MEASURED_COPY_BYTES;
        let nanoseconds = u128::from(bytes) * u128::from(copies.nanoseconds) / u128::from(copies.bytes.max(1));
        is_telling.then(|| u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }
}

/// A GPU waits for its host if steps take more than so many percent of their work's time. (Short waits are for copies.)
const HOST_BOUND_PERCENT: u64 = 130;

/// The median step, if its GPU waits for its host.
fn host_bound_step(recording: &Recording) -> Option<HostBoundStep> {
    let ends: FxHashMap<u64, u64> = recording.model.steps().iter().map(|step| (step.index, step.end_time)).collect();
    let work = recording.model.step_work(recording.device);
    let mut steps: Vec<HostBoundStep> = work
        .iter()
        .filter(|work| work.steps == 1 && work.nanoseconds > 0)
        .filter_map(|work| {
            let (began, ended) = (ends.get(&work.step.checked_sub(1)?)?, ends.get(&work.step)?);
            Some(HostBoundStep { step_ns: ended.saturating_sub(*began), work_ns: work.nanoseconds })
        })
        .collect();
    let share = |steps: &HostBoundStep| u128::from(steps.step_ns) * 1_000_000 / u128::from(steps.work_ns);
    steps.sort_unstable_by_key(share);
    let middle = steps.len() / 2;
    steps.into_iter().nth(middle).filter(|median| median.step_ns > median.work_ns / 100 * HOST_BOUND_PERCENT)
}

/// Of a second.
const NANOSECONDS: u128 = 1_000_000_000;

const MIN_MEASURED_COPY_BYTES: u64 = 1 << 20;
