//! Finds ranks that hold more or less than the others at their peaks, and attributes the difference.
//!
//! A rank differs if its distance from the median over ranks exceeds three times the median distance, and at least a
//! hundredth of the median peak. A single outlier moves neither median. If ranks differ by task, distances are large
//! everywhere, and nothing is reported. Ranks with different stages of a pipeline are not compared with each other, if the
//! program names their stages.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::sync::Arc;

use memlab_trace::{Category, Line, Scope};

use crate::interned::Layer;
use crate::statistics::{median, tolerance};
use crate::summary::{DeviceSummary, RankSummary};

/// Smallest reported difference, as a fraction (1/N) of the median peak.
const MIN_DIFFERENCE_DIVISOR: u64 = 100;

/// Memory that is compared between ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ComparedMemory {
    /// All memory allocated by PyTorch.
    Peak,
    /// Memory of a category.
    Category(Category),
    /// Memory allocated by a line; `None`: no Python frame.
    Line(Option<Arc<Line>>),
    /// Memory allocated by a layer, without the layers inside it.
    Layer(Arc<Layer>),
}

/// Bytes held by a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankBytes {
    /// Index of the rank in [`Job::ranks`](crate::Job::ranks).
    pub at: usize,
    /// Bytes held.
    pub bytes: u64,
}

/// Memory of which some ranks hold more or less than the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The compared memory.
    pub held: ComparedMemory,
    /// Median over all ranks, or over those with the same stages.
    pub median_bytes: u64,
    /// Ranks that hold more, or ranks that hold less; the most different first.
    pub ranks: Vec<RankBytes>,
}

impl Difference {
    /// Returns the difference of the most different rank, in bytes.
    pub fn bytes(&self) -> u64 {
        self.ranks.first().map_or(0, |rank| rank.bytes.abs_diff(self.median_bytes))
    }

    /// Returns true if these ranks hold more.
    pub fn is_more(&self) -> bool {
        self.ranks.first().is_some_and(|rank| rank.bytes > self.median_bytes)
    }
}

/// Returns true if ranks hold different stages of a pipeline.
pub(crate) fn have_stages(ranks: &[RankSummary]) -> bool {
    ranks.iter().any(|rank| rank.stages.stages != ranks[0].stages.stages)
}

/// Returns all differences: of peaks, then of categories, lines and layers, each the largest first.
pub(crate) fn differences(ranks: &[RankSummary], scope: Scope) -> Vec<Difference> {
    let mut by_stages: BTreeMap<&[u32], Vec<(usize, &DeviceSummary)>> = BTreeMap::new();
    for (at, rank) in ranks.iter().enumerate() {
        if let Some(device) = rank.own_device() {
            by_stages.entry(&rank.stages.stages).or_default().push((at, device));
        }
    }
    let kinds = by_stages.values().map(|devices| within_task(devices, scope)).reduce(|mut all, more| {
        std::iter::zip(&mut all, more).for_each(|(kind, more)| kind.extend(more));
        all
    });
    let mut kinds = kinds.unwrap_or_default();
    // The sort is stable, so the order within a group stays.
    kinds.iter_mut().for_each(|kind| kind.sort_by_key(|found| Reverse(found.bytes())));
    kinds.concat()
}

/// Returns the differences among ranks with the same task: of peaks, categories, lines and layers.
fn within_task(devices: &[(usize, &DeviceSummary)], scope: Scope) -> [Vec<Difference>; 4] {
    let least =
        (median(devices.iter().map(|(_, device)| device.view.peak_allocated_bytes)) / MIN_DIFFERENCE_DIVISOR).max(1);
    let peak = |device: &DeviceSummary| vec![((), device.view.peak_allocated_bytes)];
    let categories = |device: &DeviceSummary| std::iter::zip(Category::ALL, device.categories).collect();
    [
        among(devices, least, peak, |()| ComparedMemory::Peak),
        among(devices, least, categories, ComparedMemory::Category),
        among(devices, least, |device| device.lines[scope].clone(), ComparedMemory::Line),
        among(devices, least, |device| device.layers.clone(), ComparedMemory::Layer),
    ]
}

/// Returns the differences of one kind.
fn among<K: Clone + Eq + Hash + Ord>(
    devices: &[(usize, &DeviceSummary)],
    least: u64,
    rows: impl Fn(&DeviceSummary) -> Vec<(K, u64)>,
    held: impl Fn(K) -> ComparedMemory,
) -> Vec<Difference> {
    let mut by_name: HashMap<K, Vec<(usize, u64)>> = HashMap::new();
    for (place, (_, device)) in devices.iter().enumerate() {
        for (name, bytes) in rows(device) {
            by_name.entry(name).or_default().push((place, bytes));
        }
    }
    // Memory that is small everywhere cannot differ by much.
    by_name.retain(|_, rows| rows.iter().any(|(_, bytes)| *bytes >= least));
    let mut found: Vec<(K, Difference)> = Vec::new();
    for (name, rows) in by_name {
        let mut values = vec![0; devices.len()];
        for (place, bytes) in rows {
            values[place] = bytes;
        }
        let median_bytes = median(values.iter().copied());
        let tolerance = tolerance(&values, median_bytes, least);
        let at = |(place, bytes): (usize, &u64)| RankBytes { at: devices[place].0, bytes: *bytes };
        let is_far = |rank: &RankBytes| {
            let distance = rank.bytes.abs_diff(median_bytes);
            distance > tolerance || (distance == tolerance && tolerance == least)
        };
        let far: Vec<RankBytes> = values.iter().enumerate().map(at).filter(is_far).collect();
        let (more, less): (Vec<_>, Vec<_>) = far.into_iter().partition(|rank| rank.bytes > median_bytes);
        for mut ranks in [more, less].into_iter().filter(|ranks| !ranks.is_empty()) {
            ranks.sort_by_key(|rank| (Reverse(rank.bytes.abs_diff(median_bytes)), rank.at));
            found.push((name.clone(), Difference { held: held(name.clone()), median_bytes, ranks }));
        }
    }
    found.sort_by(|(a, one), (b, other)| (Reverse(one.bytes()), a).cmp(&(Reverse(other.bytes()), b)));
    found.into_iter().map(|(_, difference)| difference).collect()
}
