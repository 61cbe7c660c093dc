//! Views of the past: memory over time, optimizer steps, growth, out-of-memory events. Sizes are bytes, times nanoseconds.

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
    /// Points in order of time. Nothing changes in a gap between points.
    pub points: Vec<TimelinePoint>,
    /// Bytes by category, in fewer points, as known at that moment. Empty if not known.
    pub categories: Vec<CategoryPoint>,
}

/// One time bin of a [`Timeline`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimelinePoint {
    /// Start of the bin.
    pub time: u64,
    /// Allocated bytes.
    pub allocated: Range,
    /// Reserved bytes.
    pub reserved: Range,
    /// Use of the whole device in bytes.
    pub used: Range,
}

/// Bytes by category in one time bin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CategoryPoint {
    /// Start of the bin; it ends where the next one starts.
    pub time: u64,
    /// Bytes at the peak of the bin.
    #[serde(deserialize_with = "of_any_version")]
    pub most: CategoryBytes,
    /// Bytes at the end of the bin.
    #[serde(deserialize_with = "of_any_version")]
    pub last: CategoryBytes,
}

/// Reads bytes by category from keyframes of any version.
///
/// Older versions lack other arrays and key-value caches. Some also have one category for all communication buffers, and
/// count NCCL's memory under libraries.
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
    /// Minimum.
    pub min: u64,
    /// Maximum.
    pub max: u64,
    /// Value at the end of the bin.
    pub last: u64,
}

/// An optimizer step, or several steps merged to bound memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepView {
    /// Index of the step, from 0; the last index of merged steps.
    pub index: u64,
    /// Number of steps merged, usually 1.
    pub steps: u64,
    /// End of the step.
    pub end_time: u64,
    /// Peak allocated bytes during the step.
    pub peak_allocated_bytes: u64,
    /// Allocated bytes at the end of the step.
    pub allocated_bytes_at_end: u64,
    /// Number of events up to the end of the step, including that of the end; 0: not known.
    #[serde(default)]
    pub end_event: u64,
}

impl StepView {
    /// Returns the indexes of the steps that this view covers.
    pub fn indexes(&self) -> RangeInclusive<u64> {
        self.index.saturating_add(1).saturating_sub(self.steps.max(1))..=self.index
    }
}

/// Training progress of an optimizer step, or of several merged steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrainingView {
    /// Epoch, from 0; the last one of merged steps.
    pub epoch: u64,
    /// Index of the step in the epoch, from 0; the last one of merged steps.
    pub batch: u64,
    /// Name of the trained model, if the program trains several.
    pub phase: Option<Arc<str>>,
    /// Number of samples.
    pub samples: u64,
    /// Nanoseconds since the end of the previous step.
    pub duration: u64,
    /// Loss; for merged steps, the mean over samples; `None`: not known.
    pub loss: Option<f64>,
    /// Method that computed the gradients; the last one of merged steps.
    pub way: Option<Arc<str>>,
    /// Number of pieces that went through the model; the maximum of merged steps.
    pub pieces: u64,
    /// Bytes of activations copied to the host.
    pub offloaded_bytes: u64,
}

impl TrainingView {
    /// Returns the samples per second; `None`: not known.
    pub fn samples_per_second(&self) -> Option<f64> {
        (self.duration > 0).then(|| self.samples as f64 * 1e9 / self.duration as f64)
    }
}

/// The moments at which growth compares memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GrowthUnit {
    /// Ends of optimizer steps.
    #[default]
    Steps,
    /// Beginnings of forwards, in a program whose optimizers have made no step.
    Iterations,
}

/// Moments between which growth is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrowthMoments {
    /// Kind of the moments.
    pub unit: GrowthUnit,
    /// Steps ended, or iterations begun, at the reference.
    pub from: u64,
    /// Steps ended, or iterations begun, so far.
    pub to: u64,
}

/// Growth of one line over the run, from its bytes at the ends of steps, or at iterations.
#[derive(Clone, Debug, PartialEq)]
pub struct GrowthView {
    /// The line; `None`: no Python frame.
    pub line: Option<Arc<Line>>,
    /// Steps ended at the reference point, after warm-up.
    pub from_step: u64,
    /// Steps ended at the last snapshot.
    pub to_step: u64,
    /// Bytes at the reference point.
    pub from_bytes: u64,
    /// Bytes at the last snapshot.
    pub to_bytes: u64,
    /// Growth per step between the two, in bytes.
    pub bytes_per_step: f64,
    /// True if the line grew repeatedly, rather than once or by chance.
    pub is_steady: bool,
}

/// An out-of-memory error of PyTorch, with the holders of the memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OomView {
    /// The device.
    pub device: i32,
    /// Time of the error.
    pub time: u64,
    /// Number of events up to the error, including the error; 0: not known.
    pub event: u64,
    /// Steps that ended before the error.
    pub step: u64,
    /// Bytes requested.
    pub requested_bytes: u64,
    /// Bytes allocated, as PyTorch reports.
    pub allocated_bytes: u64,
    /// Bytes reserved, as PyTorch reports.
    pub reserved_bytes: u64,
    /// Bytes of the largest free range in PyTorch's segments.
    pub largest_free_block_bytes: u64,
    /// Bytes free in PyTorch's segments.
    pub free_bytes: u64,
    /// Free bytes in private pools of CUDA graphs. PyTorch serves nothing else from them.
    pub private_free_bytes: u64,
    /// Use of the whole device, from the last sample before the error.
    ///
    /// Without an earlier sample, context and other processes are taken from the first sample after the error.
    pub used_bytes: u64,
    /// True if the device's use was ever sampled; otherwise `used_bytes` is the driver memory of this process.
    pub used_is_known: bool,
    /// Memory of the device in bytes; 0 if not known.
    pub total_bytes: u64,
    /// The limit that memlab set for the process; `None`: no limit.
    pub limit_bytes: Option<u64>,
    /// Bytes of the process's device memory in host memory.
    pub host_bytes: u64,
    /// Other processes on the device with the bytes of each, largest first; empty if the driver does not report them.
    pub others: Vec<(u32, u64)>,
    /// The stack of the failed allocation; 0: none.
    pub stack: u32,
    /// The line of the failed allocation.
    pub line: Option<Arc<Line>>,
    /// The layer of the failed allocation, named as in [`LayerView`](super::views::LayerView).
    pub layer: Option<Arc<str>>,
    /// Lines that held most, with bytes.
    pub lines: Vec<(Option<Arc<Line>>, u64)>,
    /// Layers that held most, with bytes.
    pub layers: Vec<(Option<Arc<str>>, u64)>,
    /// Bytes by category.
    pub categories: Vec<(Category, u64)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keyframes_with_fifteen_categories_are_read() {
        // GIVEN a point with fifteen categories: the eighth was communication, the twelfth cached
        let bytes: Vec<u64> = (1..=15).collect();
        let earlier = serde_json::json!({"time": 7, "most": &bytes, "last": &bytes});
        // THEN each figure is in its category, and the new categories are 0
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
