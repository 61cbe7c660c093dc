//! The requests of one program at any batch size.

use std::fmt;

use memlab_allocator::Request;

use crate::matching::matched;
use crate::period::Period;
use crate::recording::{Event, Recording, most_at_once};

/// Recordings of one program at one or two batch sizes, which give its requests at all.
pub struct Family {
    /// The recording at the larger batch.
    pub recording: Recording,
    batches: Option<(u64, u64)>,
    /// Bytes of each allocation at the smaller and at the larger batch.
    sizes: Vec<(u64, u64)>,
    pub(crate) period: Option<Period>,
    /// Whether both recordings have the same events in the same order.
    pub is_same_order: bool,
    /// How many allocations of the recording at the larger batch have no counterpart in the other: their sizes are taken to be
    /// the same at every batch.
    pub unmatched: usize,
    /// The most bytes of them at once.
    pub unmatched_bytes: u64,
}

/// Why two recordings are not those of one program at two batches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FamilyError {
    /// Both have the same batch size.
    SameBatch(u64),
    /// More than half of the allocations have no counterpart.
    TooDifferent {
        /// Those without one.
        unmatched: usize,
        /// All.
        of: usize,
    },
}

impl fmt::Display for FamilyError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::SameBatch(batch) => write!(f, "both recordings are of batch {batch}: two different ones are needed"),
            Self::TooDifferent { unmatched, of } => write!(
                f,
                "the two recordings differ too much: {unmatched} of {of} allocations of the one have no counterpart in the other. \
                 Are they the same program, with the same options apart from the batch?"
            ),
        }
    }
}

impl std::error::Error for FamilyError {}

impl Family {
    /// One recording, which says nothing of other batches.
    pub fn of_one(recording: Recording) -> Family {
        let sizes = recording.allocations.iter().map(|allocation| (allocation.size, allocation.size)).collect();
        let period = recording.period();
        Family { recording, batches: None, sizes, period, is_same_order: true, unmatched: 0, unmatched_bytes: 0 }
    }

    /// Two recordings, with their batch sizes.
    ///
    /// # Errors
    ///
    /// If the batches are equal, or the recordings are not of one program.
    pub fn of_two(one: (u64, Recording), other: (u64, Recording)) -> Result<Family, FamilyError> {
        let ((low_batch, low), high) = if one.0 <= other.0 { (one, other) } else { (other, one) };
        Family::between((low_batch, &low), high)
    }

    /// The same program beyond the larger batch, from a recording at a batch that is larger still.
    ///
    /// # Errors
    ///
    /// As [`Family::of_two`]; also if this family is of one recording, or its batch is not smaller.
    pub fn beyond(&self, larger: (u64, Recording)) -> Result<Family, FamilyError> {
        let (_, high) = self.batches.filter(|(_, high)| *high < larger.0).ok_or(FamilyError::SameBatch(larger.0))?;
        Family::between((high, &self.recording), larger)
    }

    fn between(
        (low_batch, low): (u64, &Recording),
        (high_batch, high): (u64, Recording),
    ) -> Result<Family, FamilyError> {
        if low_batch == high_batch {
            return Err(FamilyError::SameBatch(low_batch));
        }
        let matching = matched(low, &high);
        let unmatched = matching.counterparts.iter().filter(|counterpart| counterpart.is_none()).count();
        if unmatched * 2 > high.allocations.len() {
            return Err(FamilyError::TooDifferent { unmatched, of: high.allocations.len() });
        }
        let sizes = std::iter::zip(&high.allocations, &matching.counterparts).map(|(allocation, counterpart)| {
            let size = allocation.size;
            (counterpart.map_or(size, |counterpart| low.allocations[counterpart as usize].size), size)
        });
        let sizes: Vec<(u64, u64)> = sizes.collect();
        let unmatched_size = |id: usize| {
            let is_unmatched = matching.counterparts[id].is_none();
            is_unmatched.then_some(high.allocations[id].size)
        };
        let unmatched_bytes = most_at_once(&high.events, unmatched_size);
        let period = high.period();
        let is_same_order = matching.is_same_order;
        Ok(Family {
            recording: high,
            batches: Some((low_batch, high_batch)),
            sizes,
            period,
            is_same_order,
            unmatched,
            unmatched_bytes,
        })
    }

    /// The batch sizes that were recorded.
    pub fn recorded_batches(&self) -> Option<(u64, u64)> {
        self.batches
    }

    /// Bytes of each allocation at a batch size. `None` stands for the batch that was recorded last.
    pub fn sizes(&self, batch: Option<u64>) -> Vec<u64> {
        let (Some((low, high)), Some(batch)) = (self.batches, batch) else {
            return self.sizes.iter().map(|(_, size)| *size).collect();
        };
        let (low, between, batch) = (i128::from(low), i128::from(high - low), i128::from(batch));
        let at = |&(small, large): &(u64, u64)| {
            let growth = (i128::from(large) - i128::from(small)) * (batch - low);
            // Rounded up: allocations grow by whole elements, except for few.
            let size = i128::from(small) + growth.div_euclid(between) + i128::from(growth.rem_euclid(between) != 0);
            u64::try_from(size.max(1)).unwrap_or(u64::MAX)
        };
        self.sizes.iter().map(at).collect()
    }

    pub(crate) fn request(&self, event: Event, sizes: &[u64]) -> Request {
        match event {
            Event::Allocate(id) => {
                let place = self.recording.allocations[id as usize].place;
                Request::Allocate { id, place, size: sizes[id as usize] }
            }
            Event::Free(id) => Request::Free { id },
            Event::FreeRequested(id) => Request::FreeRequested { id },
            Event::FreeCompleted(id) => Request::FreeCompleted { id },
            Event::EmptyCache => Request::EmptyCache,
        }
    }
}
