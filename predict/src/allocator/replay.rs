//! Replay of a sequence of requests.

use crate::allocator::caching::Allocator;
use crate::allocator::card::Card;
use crate::allocator::counters::Counters;
use crate::allocator::request::{OutOfMemory, Requests};
use crate::allocator::settings::Settings;

/// Outcome of a sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// All requests were carried out.
    Fits,
    /// The card had no room for a request, and the replay stopped there.
    OutOfMemory {
        /// Index of the request.
        at: usize,
        /// The failed request.
        error: OutOfMemory,
    },
}

/// Result of a sequence.
#[derive(Clone, Copy, Debug)]
pub struct Replayed {
    /// Outcome of the replay.
    pub outcome: Outcome,
    /// Final counters.
    pub counters: Counters,
    /// Index of the request at the allocated peak.
    pub peak_at: usize,
}

impl Replayed {
    /// Returns true if all requests were carried out.
    pub fn fits(&self) -> bool {
        self.outcome == Outcome::Fits
    }
}

/// Carries out the requests on an empty allocator, until the card has no room.
///
/// ```
/// use memlab_predict::allocator::{Card, PoolKey, Request, Requests, Settings, replay};
/// let requests = Requests {
///     places: vec![PoolKey::default()],
///     requests: vec![Request::Allocate { id: 0, place: 0, size: 50 << 20 }, Request::Free { id: 0 }],
///     ids: 1,
/// };
/// let replayed = replay(&requests, &Settings::default(), Card::UNLIMITED);
/// assert_eq!(replayed.counters.reserved.peak, 50 << 20);
/// assert!(!replay(&requests, &Settings::default(), Card::with_available(64 << 20, 48 << 20)).fits());
/// ```
pub fn replay(requests: &Requests, settings: &Settings, card: Card) -> Replayed {
    let mut allocator = Allocator::for_requests(requests, settings.clone(), card);
    let (mut peak, mut peak_at) = (0, 0);
    for (at, request) in requests.requests.iter().enumerate() {
        if let Err(error) = allocator.apply(*request) {
            return Replayed { outcome: Outcome::OutOfMemory { at, error }, counters: *allocator.counters(), peak_at };
        }
        if allocator.counters().allocated.peak > peak {
            (peak, peak_at) = (allocator.counters().allocated.peak, at);
        }
    }
    Replayed { outcome: Outcome::Fits, counters: *allocator.counters(), peak_at }
}
