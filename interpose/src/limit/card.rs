//! Limit of each device, and the bytes that count towards it.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use memlab_trace::encode::{self, LineBuffer};
use memlab_trace::record::DriverKind;

use interpose_base::log::Log;
use memlab_protocol::request::MAX_DEVICES;
use memlab_protocol::status::OnLimit;

/// Granularity of the driver's large blocks.
pub const GRANULE: u64 = 2 << 20;
const NO_LIMIT: u64 = u64::MAX;
/// Values of [`Card::looked_up_ms`] that are not times.
pub const NEVER_LOOKED_UP: u64 = 0;
pub const CHANGED_SINCE: u64 = 1;

/// A device: its limit, and the process's use of it.
pub struct Card {
    limit: AtomicU64,
    /// Limit recorded in the trace.
    recorded: AtomicU64,
    /// True if an allocation beyond the limit, or beyond the memory of the card, gets host memory.
    pub spills: AtomicBool,
    /// Bytes of allocations that hooks saw, including those in progress.
    pub charged: AtomicU64,
    /// Bytes that pools and graphs had reserved at the last query.
    pub reserved: AtomicU64,
    /// Bytes that are neither charged nor reserved.
    ///
    /// Negative while charged memory is not on the card.
    pub overhead: AtomicI64,
    /// Time at which `overhead` was looked up, in milliseconds; or [`NEVER_LOOKED_UP`], or [`CHANGED_SINCE`] if it has
    /// changed since.
    pub looked_up_ms: AtomicU64,
    /// Bytes in host memory because the device had no room.
    pub spilled: AtomicU64,
    /// The most bytes in host memory since they were last asked for.
    pub most_on_host: AtomicU64,
    /// Bytes that PyTorch's caching allocator has reserved and not handed out.
    pub kept_by_allocator: AtomicU64,
    /// Those of them that the allocator could not return when it was last refused memory.
    pub unreturnable: AtomicU64,
}

impl Card {
    pub const fn new() -> Self {
        Self {
            limit: AtomicU64::new(NO_LIMIT),
            recorded: AtomicU64::new(NO_LIMIT),
            spills: AtomicBool::new(false),
            charged: AtomicU64::new(0),
            reserved: AtomicU64::new(0),
            overhead: AtomicI64::new(0),
            looked_up_ms: AtomicU64::new(NEVER_LOOKED_UP),
            spilled: AtomicU64::new(0),
            most_on_host: AtomicU64::new(0),
            kept_by_allocator: AtomicU64::new(0),
            unreturnable: AtomicU64::new(0),
        }
    }

    pub fn limit(&self) -> Option<u64> {
        Some(self.limit.load(Ordering::Relaxed)).filter(|&limit| limit != NO_LIMIT)
    }

    /// Sets the limit; `None` lifts it.
    pub fn set_limit(&self, bytes: Option<u64>) {
        self.limit.store(bytes.unwrap_or(NO_LIMIT), Ordering::Relaxed);
    }

    /// Bytes in use other than charged allocations.
    fn beside_charged(&self) -> i64 {
        (self.reserved.load(Ordering::Acquire) as i64).saturating_add(self.overhead.load(Ordering::Acquire))
    }

    pub fn used(&self) -> u64 {
        self.charged.load(Ordering::Acquire).saturating_add_signed(self.beside_charged())
    }

    /// Bytes that PyTorch's caching allocator can presumably return to the driver.
    pub fn returnable(&self) -> u64 {
        let kept = self.kept_by_allocator.load(Ordering::Relaxed);
        kept.saturating_sub(self.unreturnable.load(Ordering::Relaxed))
    }

    /// Notes that PyTorch's caching allocator has returned all that it can.
    pub fn has_returned(&self) {
        self.unreturnable.store(self.kept_by_allocator.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Charges `bytes` if they fit under the limit.
    pub fn charge_if_it_fits(&self, bytes: u64) -> bool {
        let charged = self.charged.fetch_update(Ordering::AcqRel, Ordering::Acquire, |charged| {
            let after = charged.checked_add(bytes)?;
            let fits = after.saturating_add_signed(self.beside_charged()) <= self.limit.load(Ordering::Relaxed);
            fits.then_some(after)
        });
        charged.is_ok()
    }

    pub fn charge(&self, bytes: u64) {
        self.charged.fetch_add(bytes, Ordering::AcqRel);
    }

    pub fn uncharge(&self, bytes: u64) {
        let less = |charged: u64| Some(charged.saturating_sub(bytes));
        let _ = self.charged.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
    }

    /// Makes [`super::overhead`] look up the overhead before its next use.
    pub fn look_up_again(&self) {
        self.looked_up_ms.fetch_min(CHANGED_SINCE, Ordering::AcqRel);
    }
}

pub static CARDS: [Card; MAX_DEVICES] = [const { Card::new() }; MAX_DEVICES];
/// True if any device has a limit.
///
/// This is the only check of an allocation without one.
static ANY_LIMIT: AtomicBool = AtomicBool::new(false);
/// Returns true if any device has a limit.
#[inline]
pub fn is_any_limited() -> bool {
    ANY_LIMIT.load(Ordering::Relaxed)
}

/// Returns true if memory may spill on any device.
pub fn is_spilling() -> bool {
    CARDS.iter().any(|card| card.spills.load(Ordering::Relaxed))
}

/// Updates the check of [`is_any_limited`].
///
/// Must be called after limits change.
pub fn limits_changed() {
    ANY_LIMIT.store(CARDS.iter().any(|card| card.limit().is_some()), Ordering::Relaxed);
}

/// Returns the device's card, with or without a limit.
pub fn card(device: i32) -> Option<&'static Card> {
    CARDS.get(usize::try_from(device).ok()?)
}

/// Returns the device's card and limit, if it has a limit.
pub fn limited(device: i32) -> Option<(&'static Card, u64)> {
    if !is_any_limited() {
        return None;
    }
    let card = card(device)?;
    Some((card, card.limit()?))
}

/// Stores the bytes that PyTorch's caching allocator has reserved and not handed out.
#[inline]
pub fn allocator_keeps(device: i32, bytes: u64) {
    if let Some(card) = card(device).filter(|card| card.spills.load(Ordering::Relaxed)) {
        card.kept_by_allocator.store(bytes, Ordering::Relaxed);
        card.unreturnable.fetch_min(bytes, Ordering::Relaxed);
    }
}

/// Uncharges `bytes` that the driver took back.
pub fn released(device: i32, bytes: u64) {
    if let Some(card) = card(device) {
        card.uncharge(bytes);
    }
}

/// Charges `bytes` that the driver allocated without a limit check.
pub fn taken(device: i32, bytes: u64) {
    if let Some(card) = card(device) {
        card.charge(bytes);
    }
}

/// Counts `bytes` in host memory that belong on the device.
pub fn spilled(device: i32, bytes: u64) {
    if let Some(card) = card(device) {
        card.spilled.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Subtracts spilled `bytes` that were freed or moved back to the device.
pub fn unspilled(device: i32, bytes: u64) {
    if let Some(card) = card(device) {
        let less = |spilled: u64| Some(spilled.saturating_sub(bytes));
        let _ = card.spilled.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
}

/// Bytes of the card that an allocation takes: its size as the driver rounds it.
///
/// 0 for memory that is counted elsewhere (pools) or is overhead.
pub fn footprint(kind: DriverKind, bytes: u64) -> u64 {
    match kind {
        DriverKind::Device | DriverKind::Managed | DriverKind::Array => rounded(bytes),
        DriverKind::Physical => bytes,
        _ => 0,
    }
}

/// Rounds like the driver: from half a granule on, it allocates whole granules; smaller blocks share one.
fn rounded(bytes: u64) -> u64 {
    const SMALL_STEP: u64 = 512;
    let step = if bytes >= GRANULE / 2 { GRANULE } else { SMALL_STEP };
    bytes.max(1).checked_next_multiple_of(step).unwrap_or(bytes)
}

/// Writes a device's limit to the trace, if it differs from the recorded one.
pub fn record(log: &Log, device: i32) {
    let Some(card) = card(device) else { return };
    let limit = card.limit.load(Ordering::Relaxed);
    let spills = card.spills.load(Ordering::Relaxed);
    if card.recorded.swap(limit, Ordering::Relaxed) == limit && limit == NO_LIMIT && !spills {
        return;
    }
    let on_limit = OnLimit::spilling(spills).as_str();
    log.append(encode::limit(&mut LineBuffer::<128>::new(), device, card.limit(), on_limit));
}

/// Resets a forked child, which holds no memory on any device, whatever its parent holds.
///
/// It keeps its parent's limits.
pub fn reset_in_child() {
    for card in &CARDS {
        card.charged.store(0, Ordering::Relaxed);
        card.reserved.store(0, Ordering::Relaxed);
        card.spilled.store(0, Ordering::Relaxed);
        card.most_on_host.store(0, Ordering::Relaxed);
        card.look_up_again();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limited_card(limit: u64) -> Card {
        let card = Card::new();
        card.set_limit(Some(limit));
        card
    }

    #[test]
    fn sizes_are_rounded_as_the_driver_does() {
        let cases =
            [(1, 512), (512, 512), (513, 1024), ((1 << 20) - 1, 1 << 20), (1 << 20, 2 << 20), (3 << 20, 4 << 20)];
        for (bytes, taken) in cases {
            assert_eq!(footprint(DriverKind::Device, bytes), taken, "{bytes}");
        }
        assert_eq!(footprint(DriverKind::Pinned, 4096), 0, "host memory is not the card's");
        assert_eq!(footprint(DriverKind::Device, u64::MAX), u64::MAX, "nothing overflows");
    }

    #[test]
    fn the_last_byte_fits_and_the_next_does_not() {
        // GIVEN a card of 100 bytes with a context of 40
        let card = limited_card(100);
        card.overhead.store(40, Ordering::Relaxed);
        // THEN 60 bytes fit, and not one more
        assert!(card.charge_if_it_fits(60));
        assert!(!card.charge_if_it_fits(1));
        assert_eq!(card.used(), 100);
        // AND returned bytes can be charged again
        card.uncharge(10);
        assert!(!card.charge_if_it_fits(11));
        assert!(card.charge_if_it_fits(10));
    }

    #[test]
    fn charged_memory_that_left_the_card_does_not_count() {
        let card = limited_card(100);
        card.charge(90);
        card.overhead.store(-50, Ordering::Relaxed);
        assert_eq!(card.used(), 40);
        assert!(card.charge_if_it_fits(60));
        card.overhead.store(i64::MIN, Ordering::Relaxed);
        assert_eq!(card.used(), 0, "never below nothing");
    }

    /// Small generator, so that a failing seed can be rerun.
    #[test]
    fn threads_never_exceed_the_limit_together() {
        const LIMIT: u64 = 10_000;
        for seed in 1..=8 {
            // GIVEN a nearly full card, and threads that allocate and free at random
            let (card, held, most) = (limited_card(LIMIT), AtomicU64::new(0), AtomicU64::new(0));
            card.overhead.store(4_000, Ordering::Relaxed);
            std::thread::scope(|scope| {
                for thread in 0..4u64 {
                    let (card, held, most) = (&card, &held, &most);
                    scope.spawn(move || {
                        let mut random = fastrand::Rng::with_seed(seed << 32 | thread);
                        let mut mine = Vec::new();
                        for _ in 0..5_000 {
                            if random.u64(..2) == 0 {
                                let bytes = 1 + random.u64(..900);
                                if card.charge_if_it_fits(bytes) {
                                    let now = held.fetch_add(bytes, Ordering::AcqRel) + bytes;
                                    most.fetch_max(now, Ordering::AcqRel);
                                    mine.push(bytes);
                                }
                            } else if !mine.is_empty() {
                                let bytes = mine.swap_remove(random.u64(..mine.len() as u64) as usize);
                                held.fetch_sub(bytes, Ordering::AcqRel);
                                card.uncharge(bytes);
                            }
                        }
                        for bytes in mine {
                            held.fetch_sub(bytes, Ordering::AcqRel);
                            card.uncharge(bytes);
                        }
                    });
                }
            });
            // THEN together they never exceeded the limit, came close to it, and in the end nothing is charged
            let most = most.into_inner();
            assert!(most <= LIMIT - 4_000, "seed {seed}: {most}");
            assert!(most > (LIMIT - 4_000) * 9 / 10, "seed {seed}: only {most}");
            assert_eq!(card.charged.into_inner(), 0, "seed {seed}");
        }
    }
}
