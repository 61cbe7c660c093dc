//! Requests of one program at any batch size, or at any sample length.

use std::fmt;
use std::sync::Arc;

use crate::allocator::Request;

use crate::plan::growth::Growth;
use crate::plan::matching::matched;
use crate::plan::period::Period;
use crate::plan::recording::{Allocation, Event, Recording, peak_live_bytes};

/// Recordings of one program at up to three batch sizes, or sample lengths. They determine its requests at any other.
pub struct Family {
    /// Recording at the largest batch.
    pub recording: Arc<Recording>,
    /// Batches, smallest first; empty with a single recording, which does not extrapolate.
    batches: Vec<u64>,
    growths: Vec<Growth>,
    pub(crate) period: Option<Period>,
    /// True if all recordings have the same events in the same order.
    pub is_same_order: bool,
    /// Number of allocations at the largest batch without a counterpart in the others.
    ///
    /// Their sizes are taken as the same at every batch.
    pub unmatched: usize,
    /// Peak bytes of these allocations.
    pub unmatched_bytes: u64,
}

/// Reason that two recordings are not of one program at two batches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FamilyError {
    /// Fewer than two recordings.
    TooFew,
    /// Both have the same batch size.
    SameBatch(u64),
    /// More than half of the allocations have no counterpart.
    TooDifferent {
        /// Allocations without a counterpart.
        unmatched: usize,
        /// All allocations.
        of: usize,
    },
}

impl fmt::Display for FamilyError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::TooFew => f.write_str("recordings at two batch sizes are needed"),
            Self::SameBatch(batch) => write!(f, "both recordings are at batch {batch}: use two batch sizes"),
            Self::TooDifferent { unmatched, of } => write!(
                f,
                "the two recordings differ too much: {unmatched} of {of} allocations of one recording have no counterpart \
                 in the other. Are they the same program, with the same options apart from the batch?"
            ),
        }
    }
}

impl std::error::Error for FamilyError {}

impl Family {
    /// Returns the family of one recording, which does not extrapolate to other batches.
    pub fn of_one(recording: impl Into<Arc<Recording>>) -> Family {
        let recording = recording.into();
        let growths = recording.allocations.iter().map(|allocation| Growth::constant(allocation.size)).collect();
        let period = recording.period();
        let batches = Vec::new();
        Family { recording, batches, growths, period, is_same_order: true, unmatched: 0, unmatched_bytes: 0 }
    }

    /// Returns the family of two recordings with their batch sizes. Requests grow linearly.
    ///
    /// # Errors
    ///
    /// If the batches are equal, or the recordings are not of one program.
    pub fn of_two(one: (u64, Recording), other: (u64, Recording)) -> Result<Family, FamilyError> {
        let (low, (high_batch, high)) = if one.0 <= other.0 { (one, other) } else { (other, one) };
        Family::below((high_batch, high), &[(low.0, &low.1)])
    }

    /// Returns the family of three recordings with their lengths.
    ///
    /// Requests may grow with the square of the length, as attention scores do.
    ///
    /// # Errors
    ///
    /// If two lengths are equal, or the recordings are not of one program.
    pub fn of_three(mut recordings: [(u64, Recording); 3]) -> Result<Family, FamilyError> {
        recordings.sort_by_key(|(length, _)| *length);
        let [low, middle, high] = recordings;
        if low.0 == middle.0 {
            return Err(FamilyError::SameBatch(low.0));
        }
        Family::below(high, &[(low.0, &low.1), (middle.0, &middle.1)])
    }

    /// Returns the same program beyond the larger batch, from a recording at an even larger batch.
    ///
    /// # Errors
    ///
    /// As [`Family::of_two`]. Also if this family has one recording, or its batch is not smaller.
    pub fn beyond(&self, larger: (u64, Recording)) -> Result<Family, FamilyError> {
        let (_, high) =
            self.recorded_batches().filter(|(_, high)| *high < larger.0).ok_or(FamilyError::SameBatch(larger.0))?;
        Family::below(larger, &[(high, &self.recording)])
    }

    /// Returns the family of the recording at the largest batch and those at smaller ones.
    fn below((high_batch, high): (u64, Recording), lower: &[(u64, &Recording)]) -> Result<Family, FamilyError> {
        if lower.iter().any(|(batch, _)| *batch == high_batch) {
            return Err(FamilyError::SameBatch(high_batch));
        }
        let mut points: Vec<Vec<(u64, u64)>> = vec![Vec::new(); high.allocations.len()];
        let mut is_same_order = true;
        for (batch, recording) in lower {
            let matching = matched(recording, &high);
            is_same_order &= matching.is_same_order;
            let unmatched = matching.counterparts.iter().filter(|counterpart| counterpart.is_none()).count();
            if unmatched * 2 > high.allocations.len() {
                return Err(FamilyError::TooDifferent { unmatched, of: high.allocations.len() });
            }
            for (points, counterpart) in std::iter::zip(&mut points, &matching.counterparts) {
                points.extend(counterpart.map(|id| (*batch, recording.allocations[id as usize].size)));
            }
        }
        let is_unmatched = |id: usize| points[id].is_empty();
        let unmatched = (0..points.len()).filter(|id| is_unmatched(*id)).count();
        let unmatched_size = |id: usize| is_unmatched(id).then_some(high.allocations[id].size);
        let unmatched_bytes = peak_live_bytes(&high.events, unmatched_size);
        let growth = |(points, allocation): (&Vec<(u64, u64)>, &Allocation)| {
            Growth::through(points.iter().copied().chain([(high_batch, allocation.size)]))
        };
        let growths = std::iter::zip(&points, &high.allocations).filter_map(growth).collect();
        let batches = lower.iter().map(|(batch, _)| *batch).chain([high_batch]).collect();
        let period = high.period();
        let recording = Arc::new(high);
        Ok(Family { recording, batches, growths, period, is_same_order, unmatched, unmatched_bytes })
    }

    /// Returns the smallest and the largest recorded batch.
    pub fn recorded_batches(&self) -> Option<(u64, u64)> {
        Some((*self.batches.first()?, *self.batches.last()?))
    }

    /// Returns the peak bytes, at the largest batch, of allocations that do not grow as tensors do.
    pub(crate) fn irregular_bytes(&self) -> u64 {
        peak_live_bytes(&self.recording.events, |id| {
            let growth = &self.growths[id];
            (!growth.is_plain()).then(|| growth.last())
        })
    }

    /// Returns the bytes of each allocation at a batch size. `None` stands for the largest recorded batch.
    pub fn sizes(&self, batch: Option<u64>) -> Vec<u64> {
        let size = |growth: &Growth| match batch {
            Some(batch) if !self.batches.is_empty() => growth.at(batch),
            _ => growth.last(),
        };
        self.growths.iter().map(size).collect()
    }

    pub(crate) fn request(&self, event: Event, sizes: &[u64]) -> Request {
        self.recording.request(event, |id| sizes[id as usize])
    }
}
