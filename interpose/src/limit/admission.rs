//! Admission: grants, refuses or spills an allocation.

use std::sync::atomic::Ordering;

use super::card::{Card, GRANULE, card, limited};
use super::in_flight::InFlight;
use super::{overhead, spill};

/// A block below this size does not spill: it could not move back, and libraries use such blocks all the time.
const SMALL: u64 = GRANULE / 2;

/// Most bytes beyond a limit for such blocks. Other memory spills then, until the limit is kept again.
const MOST_SMALL: u64 = 32 << 20;

/// Bytes that the process may still allocate on a device; `u64::MAX` if nothing bounds them.
pub fn room(device: i32) -> u64 {
    let within_limit = limited(device).map_or(u64::MAX, |(card, limit)| {
        overhead::look_up(device, card);
        limit.saturating_sub(card.used())
    });
    let on_card = if spill::is_allowed(device) { spill::room_of_card(device) } else { None };
    within_limit.min(on_card.unwrap_or(u64::MAX))
}

/// The decision on an allocation.
pub enum Admission {
    /// The program's call may go to the driver.
    Granted(Reservation),
    /// The call must fail with out of memory.
    Refused,
    /// The memory must come from the host.
    Spill,
}

/// Decides on `bytes` (rounded: [`footprint`]) of device memory before the driver is asked for them.
///
/// `caller` is the address of the driver's caller. PyTorch's caching allocator is refused once before anything spills, if
/// that makes it release cached memory.
pub fn admit(device: i32, bytes: u64, caller: usize) -> Admission {
    decide(device, bytes, |card, limit| {
        let room_at_best = limit.saturating_sub(card.used()).saturating_add(card.returnable());
        room_at_best < bytes || spill::is_due(device, bytes, caller)
    })
}

/// Decides on `bytes` as [`admit`] does. `spills_now`: whether they spill if they do not fit.
pub fn decide(device: i32, bytes: u64, spills_now: impl FnOnce(&Card, u64) -> bool) -> Admission {
    let Some((card, limit)) = limited(device) else { return Admission::Granted(Reservation::for_nothing(device)) };
    overhead::look_up_if_old(device, card);
    let mut granted = reserve(device, card, bytes);
    if granted.is_none() && bytes <= limit {
        // Unused memory of pools, or an outdated overhead, may be the only obstacle.
        overhead::make_room(device, card);
        granted = reserve(device, card, bytes);
    }
    let may_spill = card.spills.load(Ordering::Relaxed);
    if granted.is_none() && may_spill && bytes < SMALL && card.used().saturating_sub(limit) < MOST_SMALL {
        granted = Some(reserve_anyway(device, card, bytes));
    }
    match granted {
        Some(reservation) => Admission::Granted(reservation),
        None if may_spill && spills_now(card, limit) => Admission::Spill,
        None => Admission::Refused,
    }
}

fn reserve(device: i32, card: &Card, bytes: u64) -> Option<Reservation> {
    let in_flight = InFlight::begin();
    card.charge_if_it_fits(bytes).then(|| Reservation { device, bytes, _in_flight: Some(in_flight) })
}

/// Charges `bytes` beyond the limit.
fn reserve_anyway(device: i32, card: &Card, bytes: u64) -> Reservation {
    let in_flight = InFlight::begin();
    card.charge(bytes);
    Reservation { device, bytes, _in_flight: Some(in_flight) }
}

/// Reserves room for an allocation in progress; dropping it returns the room.
pub struct Reservation {
    device: i32,
    bytes: u64,
    /// `None` without a limit.
    _in_flight: Option<InFlight>,
}

impl Reservation {
    pub const fn for_nothing(device: i32) -> Self {
        Self { device, bytes: 0, _in_flight: None }
    }

    /// Commits a successful allocation of `bytes`.
    ///
    /// [`released`] gets the same number when it is freed.
    pub fn commit(mut self, bytes: u64) {
        let reserved = std::mem::take(&mut self.bytes);
        let Some(card) = card(self.device) else { return };
        if bytes >= reserved { card.charge(bytes - reserved) } else { card.uncharge(reserved - bytes) }
    }

    /// Commits a successful allocation whose free memlab will not see.
    pub fn commit_unwatched(self) {
        if let Some(card) = card(self.device) {
            card.look_up_again();
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(card) = card(self.device)
            && self.bytes > 0
        {
            card.uncharge(self.bytes);
        }
    }
}

/// Free and total bytes of the device as the program should see them.
///
/// Looks up the process's footprint again.
pub fn seen(device: i32, free: u64, total: u64) -> (u64, u64) {
    let Some((card, limit)) = limited(device) else { return (free, total) };
    overhead::look_up(device, card);
    (free.min(limit.saturating_sub(card.used())), total.min(limit))
}

/// Total bytes of the device as the program should see them.
pub fn seen_total(device: i32, total: u64) -> u64 {
    limited(device).map_or(total, |(_, limit)| total.min(limit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::card::{released, taken};

    /// Device used only by the test below.
    const TEST_DEVICE: i32 = 63;

    #[test]
    fn a_dropped_reservation_returns_its_bytes() {
        let card = card(TEST_DEVICE).unwrap();
        let reserve = |bytes| Reservation { device: TEST_DEVICE, bytes, _in_flight: Some(InFlight::begin()) };
        card.charge(700);
        // WHEN the real call fails, THEN its bytes are free again
        drop(reserve(700));
        assert_eq!(card.charged.load(Ordering::Relaxed), 0);
        // WHEN it succeeds, THEN the bytes that it took stay charged, more or fewer
        card.charge(100);
        reserve(100).commit(160);
        card.charge(100);
        reserve(100).commit(40);
        assert_eq!(card.charged.load(Ordering::Relaxed), 200);
        // AND without a limit it is also charged: one may be set later
        Reservation::for_nothing(TEST_DEVICE).commit(8);
        released(TEST_DEVICE, 208);
        assert_eq!(card.charged.load(Ordering::Relaxed), 0);
        // AND device numbers beyond the table are ignored
        released(64, 1);
        taken(-1, 1);
    }
}
