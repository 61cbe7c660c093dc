//! Durations known from the trace.

use crate::plan::Recording;
use memlab_trace::{BlockLayer, GpuWorkView};
use rustc_hash::FxHashMap;

use crate::advice::cost::Cost;
use crate::advice::modules::Modules;
use crate::advice::report::HostBoundStep;

/// Measured GPU times; empty if none were recorded. They are step times only while a step waits for the GPU.
pub(crate) struct Times {
    work: Option<GpuWorkView>,
    waits: Option<HostBoundStep>,
    /// Bandwidth of the link between device and host in one direction.
    link_bytes_per_second: Option<u64>,
    /// Steps with complete GPU times, and the total of these times.
    ///
    /// The recording may also contain parts of other steps.
    steps: u64,
    of_steps_ns: u64,
    /// Number of all steps.
    all_steps: u64,
}

/// Share of a pass's time that `memlab.offload_activations` plans to fill with copies.
const COPY_TIME_PERCENT: u128 = 80;

/// Payload and size of a packet: 256 bytes of data have 24 bytes of framing, address and checksum (PCI Express, gen 3
/// to 5).
const PACKET_DATA_BYTES: u64 = 256;
const PACKET_BYTES: u64 = 256 + 24;

/// Bytes that the link carries in one direction while a step computes.
#[derive(Clone, Copy)]
pub(crate) struct LinkCapacity {
    /// To the host, during the forwards.
    pub leaving: u64,
    /// Back, during their backwards.
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

    /// Returns true if the run has GPU times.
    pub fn are_recorded(&self) -> bool {
        self.work.is_some()
    }

    /// Returns the median step if its GPU waits for the host.
    ///
    /// The GPU time of a change then does not predict the step time.
    pub fn host_bound_step(&self) -> Option<HostBoundStep> {
        self.waits
    }

    /// Returns the cost of a change from its GPU time per step.
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

    /// Returns the time per step that the GPU waits for copies to the host and back that the link cannot hide.
    pub fn waiting_for(&self, leaving: u64, returning: u64) -> Option<u64> {
        let capacity = self.link_capacity()?;
        let bytes = leaving.saturating_sub(capacity.leaving) + returning.saturating_sub(capacity.returning);
        let waited = u128::from(bytes) * NANOSECONDS / u128::from(self.link_bytes_per_second?);
        Some(u64::try_from(waited).unwrap_or(u64::MAX))
    }

    /// Returns the duration of a forward of each module, in nanoseconds.
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

    /// Returns the duration per step of a layer's forwards, without inner layers.
    pub fn forward_of_a_step(&self, layer: &BlockLayer) -> Option<u64> {
        let layers = &self.work.as_ref()?.layers;
        let row = layers.iter().find(|row| (row.root, &row.name) == (layer.root, &layer.name))?;
        Some(self.of_a_step(row.totals.nanoseconds.saturating_sub(row.backward_nanoseconds)))
    }

    /// Converts a recorded total to a per-step figure.
    pub fn of_a_step(&self, nanoseconds: u64) -> u64 {
        let recorded = self.work.as_ref().map_or(0, |work| work.total.nanoseconds);
        if self.of_steps_ns == 0 || recorded == 0 {
            return nanoseconds / self.steps;
        }
        let of_steps = u128::from(nanoseconds) * u128::from(self.of_steps_ns) / u128::from(recorded);
        u64::try_from(of_steps).unwrap_or(u64::MAX) / self.steps
    }

    /// Returns the duration of copying bytes to pageable host memory and back, estimated from the run's copies.
    pub fn pageable_round_trip(&self, bytes: u64) -> Option<u64> {
        Some(self.copied("device", "pageable", bytes)? + self.copied("pageable", "device", bytes)?)
    }

    fn copied(&self, from: &str, to: &str, bytes: u64) -> Option<u64> {
        let name = format!("copy {from} to {to}");
        let copies = self.work.as_ref()?.kernels.iter().find(|kernel| *kernel.name == *name)?.totals;
        // Latency dominates small copies.
        let is_telling = copies.calls > 0 && copies.bytes / copies.calls >= MIN_MEASURED_COPY_BYTES;
        let nanoseconds = u128::from(bytes) * u128::from(copies.nanoseconds) / u128::from(copies.bytes.max(1));
        is_telling.then(|| u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }
}

/// The GPU waits for its host if steps take more than this percentage of their work's time.
///
/// Shorter waits are for copies.
const HOST_BOUND_PERCENT: u64 = 130;

/// Returns the median step if its GPU waits for its host.
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

/// Nanoseconds per second.
const NANOSECONDS: u128 = 1_000_000_000;

const MIN_MEASURED_COPY_BYTES: u64 = 1 << 20;
