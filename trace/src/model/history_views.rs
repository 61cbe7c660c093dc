//! What the model shows of the past: memory over time, optimizer steps, growth, out-of-memory events. Sizes are bytes, times
//! nanoseconds.

use std::ops::RangeInclusive;
use std::sync::Arc;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use super::category::{Category, CategoryBytes};
use super::line::Line;

/// A device's memory over time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// The width of a point in nanoseconds.
    pub width: u64,
    /// The points in order of time. A gap means that nothing changed.
    pub points: Vec<TimelinePoint>,
    /// Bytes by category, in fewer points, as known at that moment. Empty if not known.
    pub categories: Vec<CategoryPoint>,
}

/// One time bin of a [`Timeline`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimelinePoint {
    /// When it begins.
    pub time: u64,
    /// Allocated.
    pub allocated: Range,
    /// Reserved.
    pub reserved: Range,
    /// The whole device's use.
    pub used: Range,
}

/// Bytes by category in one time bin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CategoryPoint {
    /// When it begins; it ends with the next one.
    pub time: u64,
    /// At the peak of the bin.
    #[serde(deserialize_with = "of_any_version")]
    pub most: CategoryBytes,
    /// At its end.
    #[serde(deserialize_with = "of_any_version")]
    pub last: CategoryBytes,
}

/// Bytes by category; also from keyframes without other arrays, without key-value caches, and from those in which buffers for communication were one
/// category, too, and NCCL's memory was of libraries.
fn of_any_version<'de, D: Deserializer<'de>>(from: D) -> Result<CategoryBytes, D::Error> {
    use Category::{DdpBucket, Gathered, KvCache, Nccl, OtherArrays, ReduceScatter};
    const NEWER: [&[Category]; 4] = [
        &[],
        &[OtherArrays],
        &[OtherArrays, KvCache],
        &[OtherArrays, KvCache, Gathered, ReduceScatter, DdpBucket, Nccl],
    ];
    let bytes = Vec::<u64>::deserialize(from)?;
    let Some(newer) = NEWER.into_iter().find(|newer| bytes.len() + newer.len() == Category::COUNT) else {
        return Err(D::Error::invalid_length(bytes.len(), &"the bytes of each category"));
    };
    let places = Category::ALL.into_iter().filter(|category| !newer.contains(category));
    let mut of_all = CategoryBytes::default();
    for (category, bytes) in places.zip(bytes) {
        of_all[category as usize] = bytes;
    }
    Ok(of_all)
}

/// Range of a figure within a time bin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    /// The least.
    pub min: u64,
    /// The most.
    pub max: u64,
    /// At the end of the bin.
    pub last: u64,
}

/// An optimizer step, or several that were joined to bound memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepView {
    /// The number of the step, from 0; of the last one joined.
    pub index: u64,
    /// The number of steps joined, usually 1.
    pub steps: u64,
    /// When it ended.
    pub end_time: u64,
    /// The most allocated during it.
    pub peak_allocated_bytes: u64,
    /// Allocated when it ended.
    pub allocated_bytes_at_end: u64,
    /// Events until then, the end of the step included; 0: not known.
    #[serde(default)]
    pub end_event: u64,
}

impl StepView {
    /// The numbers of the steps that it is of.
    pub fn indexes(&self) -> RangeInclusive<u64> {
        self.index.saturating_add(1).saturating_sub(self.steps.max(1))..=self.index
    }
}

/// What a training did in an optimizer step, or in several that were joined.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrainingView {
    /// The epoch, from 0; of the last one joined.
    pub epoch: u64,
    /// Which step of the epoch, from 0; the last one joined.
    pub batch: u64,
    /// The name of the model that was trained, if there are several.
    pub phase: Option<Arc<str>>,
    /// Samples that the gradients are of.
    pub samples: u64,
    /// Nanoseconds since the step before.
    pub duration: u64,
    /// The loss, of joined steps their mean over samples; `None`: not known.
    pub loss: Option<f64>,
    /// How the gradients were computed; of the last one joined.
    pub way: Option<Arc<str>>,
    /// In how many pieces; of joined steps the most.
    pub pieces: u64,
    /// Bytes of activations that were copied to the host.
    pub offloaded_bytes: u64,
}

impl TrainingView {
    /// Samples a second; `None`: not known.
    pub fn samples_per_second(&self) -> Option<f64> {
        (self.duration > 0).then(|| self.samples as f64 * 1e9 / self.duration as f64)
    }
}

/// How the bytes of one line at the ends of steps changed over the run.
#[derive(Clone, Debug, PartialEq)]
pub struct GrowthView {
    /// The line; `None`: no Python frame.
    pub line: Option<Arc<Line>>,
    /// Steps ended at the reference, after warm-up.
    pub from_step: u64,
    /// Steps ended at the last snapshot.
    pub to_step: u64,
    /// Bytes at the reference.
    pub from_bytes: u64,
    /// Bytes at the last snapshot.
    pub to_bytes: u64,
    /// Growth per step between the two.
    pub bytes_per_step: f64,
    /// Whether it grew repeatedly, rather than once or by chance.
    pub is_steady: bool,
}

/// An out-of-memory error of PyTorch, and what held the memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OomView {
    /// The device.
    pub device: i32,
    /// When.
    pub time: u64,
    /// Events until then, this one included; 0: not known.
    pub event: u64,
    /// Steps ended before it.
    pub step: u64,
    /// The bytes asked for.
    pub requested_bytes: u64,
    /// Bytes allocated, as PyTorch reports.
    pub allocated_bytes: u64,
    /// Bytes reserved, as PyTorch reports.
    pub reserved_bytes: u64,
    /// The largest hole in PyTorch's segments.
    pub largest_free_block_bytes: u64,
    /// Bytes free in PyTorch's segments.
    pub free_bytes: u64,
    /// Free bytes in private pools of CUDA graphs, from which nothing else is served.
    pub private_free_bytes: u64,
    /// The use of the whole device as last sampled before the error. If it was never sampled before, context and other
    /// processes are as in the first sample after it.
    pub used_bytes: u64,
    /// Whether the use of the device was ever sampled; otherwise `used_bytes` is the driver memory of this process.
    pub used_is_known: bool,
    /// The device's memory; 0 if not known.
    pub total_bytes: u64,
    /// The limit that memlab set for the process; `None`: no limit.
    pub limit_bytes: Option<u64>,
    /// Bytes of the process's device memory that were in host memory.
    pub host_bytes: u64,
    /// Other processes on the device and the bytes of each, the largest first; empty where the driver does not report them.
    pub others: Vec<(u32, u64)>,
    /// The stack of the failed allocation; 0: none.
    pub stack: u32,
    /// The line of the failed allocation.
    pub line: Option<Arc<Line>>,
    /// The layer of the failed allocation, named as in [`LayerView`](super::views::LayerView).
    pub layer: Option<Arc<str>>,
    /// The lines that held most, with bytes.
    pub lines: Vec<(Option<Arc<Line>>, u64)>,
    /// The layers that held most, with bytes.
    pub layers: Vec<(Option<Arc<str>>, u64)>,
    /// Bytes by category.
    pub categories: Vec<(Category, u64)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keyframes_of_before_communication_was_told_apart_are_read() {
        // GIVEN a point with fifteen categories: the eighth was communication, the twelfth what is cached
        let bytes: Vec<u64> = (1..=15).collect();
        let earlier = serde_json::json!({"time": 7, "most": &bytes, "last": &bytes});
        // THEN each figure is in its category, and the new ones are 0
        let CategoryPoint { most, last, .. } = serde_json::from_value(earlier).unwrap();
        assert_eq!((most, most.iter().sum::<u64>()), (last, 120));
        let of = |category: Category| most[category as usize];
        assert_eq!([of(Category::Temporary), of(Category::Communication), of(Category::Workspace)], [7, 8, 9]);
        assert_eq!(
            [of(Category::Cached), of(Category::Nccl), of(Category::Context), of(Category::Other)],
            [12, 0, 13, 15]
        );
        assert_eq!([of(Category::Gathered), of(Category::ReduceScatter), of(Category::DdpBucket)], [0, 0, 0]);
        assert!(
            serde_json::from_value::<CategoryPoint>(serde_json::json!({"time": 7, "most": [1], "last": [1]})).is_err()
        );
    }

    #[test]
    fn keyframes_of_before_other_arrays_are_read() {
        // GIVEN a point with twenty categories: the thirteenth was workspaces, the fourteenth benchmarks
        let bytes: Vec<u64> = (1..=20).collect();
        let earlier = serde_json::json!({"time": 7, "most": &bytes, "last": &bytes});
        // THEN each figure is in its category
        let CategoryPoint { most, .. } = serde_json::from_value(earlier).unwrap();
        let of = |category: Category| most[category as usize];
        assert_eq!([of(Category::Workspace), of(Category::OtherArrays), of(Category::Benchmark)], [13, 0, 14]);
        assert_eq!([of(Category::KvCache), of(Category::Other)], [5, 20]);
    }

    #[test]
    fn keyframes_of_before_key_value_caches_are_read() {
        // GIVEN a point with nineteen categories: the fourth was buffers, the fifth activations
        let bytes: Vec<u64> = (1..=19).collect();
        let earlier = serde_json::json!({"time": 7, "most": &bytes, "last": &bytes});
        // THEN each figure is in its category
        let CategoryPoint { most, .. } = serde_json::from_value(earlier).unwrap();
        let of = |category: Category| most[category as usize];
        assert_eq!([of(Category::Buffer), of(Category::KvCache), of(Category::Activation)], [4, 0, 5]);
        assert_eq!([of(Category::Gathered), of(Category::Other)], [8, 19]);
    }
}
