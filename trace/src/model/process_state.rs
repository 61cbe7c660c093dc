//! State of a process, built by replaying records.

use hashbrown::HashMap;

use super::anomalies::Anomalies;
use super::device::DeviceState;
use super::driver_memory::DriverMemory;
use super::holders::Searches;
use super::long_lived::LongLivedScan;
use super::ooms::Ooms;
use super::scope::Scope;
use super::step_work::{BySteps, WaitingSteps};
use super::steps::Steps;
use super::symbols::Symbols;
use super::trainings::Trainings;
use super::views::StepWaitView;
use memlab_format::record::{self, Phase};

/// The device number of host memory.
pub const HOST: i32 = -1;

/// Maximum number of devices of a process.
const MAX_DEVICES: i32 = 256;

/// The state of a traced process.
#[derive(Clone, Default)]
pub struct Model {
    pub(super) header: Option<record::Header>,
    pub(super) end: Option<record::End>,
    pub(super) warnings: Vec<String>,
    pub(super) mesh: record::Mesh,
    pub(super) stages: record::Stages,
    pub(super) anomalies: Anomalies,
    pub(super) latest_time: u64,
    pub(super) event_count: u64,
    pub(super) steps_ended: u64,
    /// Part of `steps_ended` whose GPU time was not recorded, although that of others was.
    pub(super) steps_untimed: u64,
    /// Ended steps whose GPU time has not arrived yet.
    pub(super) steps_waiting: WaitingSteps,
    pub(super) phase: Phase,
    pub(super) symbols: Symbols,
    pub(super) devices: Vec<Option<Box<DeviceState>>>,
    pub(super) host: DriverMemory,
    pub(super) threads: Threads,
    pub(super) last_scan: LongLivedScan,
    pub(super) allocated_bytes_all_devices: u64,
    pub(super) steps: Steps,
    pub(super) step_waits: BySteps<StepWaitView>,
    pub(super) trainings: Trainings,
    pub(super) ooms: Ooms,
    pub(super) searches: Searches,
    pub(super) lost_events: u64,
    pub(super) scope: Scope,
}

/// Threads that have allocated, with their forward and range state.
#[derive(Clone, Default)]
pub(super) struct Threads {
    pub(super) ids: Vec<u32>,
    pub(super) in_forward: Vec<bool>,
    /// Innermost range of each thread; 0: none.
    pub(super) ranges: Vec<u32>,
    pub(super) indexes: HashMap<u32, u32>,
    pub(super) forward_count: u32,
    /// Number of times that a thread entered forward.
    pub(super) passes: u64,
    /// The latest thread and its index.
    pub(super) latest: Option<(u32, u32)>,
}

impl Threads {
    #[inline]
    pub(super) fn index(&mut self, thread: u32) -> u32 {
        match self.latest {
            Some((id, index)) if id == thread => index,
            _ => {
                let index = *self.indexes.entry(thread).or_insert_with(|| {
                    self.ids.push(thread);
                    self.in_forward.push(false);
                    self.ranges.push(0);
                    (self.ids.len() - 1) as u32
                });
                self.latest = Some((thread, index));
                index
            }
        }
    }
}

impl Model {
    /// Returns the state before the first record.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the device, created if it is new; `None` if its number is out of range.
    #[inline]
    pub(super) fn device_mut(&mut self, device: i32) -> Option<&mut DeviceState> {
        self.device_with_symbols(device).map(|(device, ..)| device)
    }

    /// Returns the device as [`device_mut`](Self::device_mut) does, with the other state that its changes need.
    #[inline]
    pub(super) fn device_with_symbols(
        &mut self,
        device: i32,
    ) -> Option<(&mut DeviceState, &mut Symbols, &mut Anomalies)> {
        if !(0..MAX_DEVICES).contains(&device) {
            self.anomalies.impossible_events += 1;
            return None;
        }
        let index = device as usize;
        if index >= self.devices.len() {
            self.devices.resize_with(index + 1, || None);
        }
        let device = self.devices[index].get_or_insert_default();
        Some((device, &mut self.symbols, &mut self.anomalies))
    }

    pub(super) fn device_state(&self, device: i32) -> Option<&DeviceState> {
        self.devices.get(usize::try_from(device).ok()?)?.as_deref()
    }

    /// Copies the scope and the names of layers and threads from a later state.
    ///
    /// Modules get their names after their first allocations.
    pub fn adopt_names(&mut self, later: &Self) {
        self.scope = later.scope;
        self.symbols.adopt_names(&later.symbols);
    }
}
