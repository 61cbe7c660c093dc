//! A limit on what the process may hold on a device, as if the card were of that size.
//!
//! What counts is the whole footprint: everything a card of that size would have to hold, the context and the program's
//! kernels included. Three parts make it up. Allocations that hooks see one by one are *booked*, rounded as the driver
//! rounds. Pools of stream-ordered memory and the memory of graphs are asked for what they have *reserved*, since they
//! keep what was freed. The rest lies *elsewhere* ([`outside`] says how that is known).
//!
//! A hook asks [`admit`] before the real call, and the bytes it is granted are booked from then on, so that two threads at
//! the border cannot both slip through. Beyond the limit a call is refused as a full card refuses it, or put in host
//! memory ([`spill`]).

pub mod calls;
pub mod outside;
pub mod parse;
pub mod spill;

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use memlab_trace::encode::{self, LineBuffer};
use memlab_trace::record::DriverKind;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use serde_json::{Value, json};

use crate::config::Config;
use crate::lifecycle::free_in_child;
use crate::mover;
use crate::recorder::Recorder;
use crate::request::DEVICES;

/// Bytes in which the driver takes large blocks off the card.
pub const GRANULE: u64 = 2 << 20;
const NO_LIMIT: u64 = u64::MAX;
const NEVER: u64 = 0;
const CHANGED: u64 = 1;
/// How long threads wait for each other where the books are compared with the card.
const PATIENCE: Duration = Duration::from_millis(50);

/// What happens to an allocation beyond the limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnLimit {
    /// It fails, as on a full card.
    Oom,
    /// It is put in host memory that the device reaches.
    Spill,
}

impl OnLimit {
    pub const fn spilling(spills: bool) -> Self {
        if spills { Self::Spill } else { Self::Oom }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Oom => "oom",
            Self::Spill => "spill",
        }
    }
}

/// One device: its limit, and what the process holds there.
struct Card {
    limit: AtomicU64,
    /// The limit that the trace has.
    recorded: AtomicU64,
    spills: AtomicBool,
    /// Bytes of allocations that hooks saw, those being made right now included.
    booked: AtomicU64,
    /// Bytes that pools and graphs had reserved when they were last asked.
    reserved: AtomicU64,
    /// What is neither booked nor reserved. Negative while something booked is no longer on the card.
    elsewhere: AtomicI64,
    /// When `elsewhere` was looked up, in milliseconds; [`NEVER`], or [`CHANGED`] since then.
    looked_up_ms: AtomicU64,
    /// Bytes put in host memory for want of room here.
    spilled: AtomicU64,
    /// Bytes that PyTorch's caching allocator has reserved and not handed out.
    kept_by_allocator: AtomicU64,
}

impl Card {
    const fn new() -> Self {
        Self {
            limit: AtomicU64::new(NO_LIMIT),
            recorded: AtomicU64::new(NO_LIMIT),
            spills: AtomicBool::new(false),
            booked: AtomicU64::new(0),
            reserved: AtomicU64::new(0),
            elsewhere: AtomicI64::new(0),
            looked_up_ms: AtomicU64::new(NEVER),
            spilled: AtomicU64::new(0),
            kept_by_allocator: AtomicU64::new(0),
        }
    }

    fn limit(&self) -> Option<u64> {
        Some(self.limit.load(Ordering::Relaxed)).filter(|&limit| limit != NO_LIMIT)
    }

    /// What the process holds beside booked allocations.
    fn unbooked(&self) -> i64 {
        (self.reserved.load(Ordering::Acquire) as i64).saturating_add(self.elsewhere.load(Ordering::Acquire))
    }

    fn used(&self) -> u64 {
        self.booked.load(Ordering::Acquire).saturating_add_signed(self.unbooked())
    }

    /// Books `bytes` if they fit under the limit.
    fn book_if_it_fits(&self, bytes: u64) -> bool {
        let booked = self.booked.fetch_update(Ordering::AcqRel, Ordering::Acquire, |booked| {
            let after = booked.checked_add(bytes)?;
            let fits = after.saturating_add_signed(self.unbooked()) <= self.limit.load(Ordering::Relaxed);
            fits.then_some(after)
        });
        booked.is_ok()
    }

    fn book(&self, bytes: u64) {
        self.booked.fetch_add(bytes, Ordering::AcqRel);
    }

    fn strike_off(&self, bytes: u64) {
        let less = |booked: u64| Some(booked.saturating_sub(bytes));
        let _ = self.booked.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
    }

    /// Has [`outside`] look up what lies elsewhere before it is used again.
    fn look_up_again(&self) {
        self.looked_up_ms.fetch_min(CHANGED, Ordering::AcqRel);
    }
}

static CARDS: [Card; DEVICES] = [const { Card::new() }; DEVICES];
/// Whether any device has a limit: all that an allocation without one looks at.
static ANY: AtomicBool = AtomicBool::new(false);
/// Held, for reading, by calls under way that take or give back device memory: while there are any, books and card
/// disagree. For writing, by who compares the two.
static UNDER_WAY: RwLock<()> = RwLock::new(());
/// One thread at a time changes limits.
static SETTING: Mutex<()> = Mutex::new(());
/// What is wrong with the environment's wishes: see [`complaint`].
static COMPLAINT: Mutex<Option<String>> = Mutex::new(None);

/// The device's card, whether or not it has a limit.
fn card(device: i32) -> Option<&'static Card> {
    CARDS.get(usize::try_from(device).ok()?)
}

/// The device's card and limit, if it has one.
fn limited(device: i32) -> Option<(&'static Card, u64)> {
    if !ANY.load(Ordering::Relaxed) {
        return None;
    }
    let card = card(device)?;
    Some((card, card.limit()?))
}

/// What `MEMLAB_LIMIT` and `MEMLAB_ON_LIMIT` ask for holds from here on.
pub fn start(config: &Config) {
    let (wanted, complaint) = parse::wanted(config.limit.as_deref(), config.on_limit.as_deref());
    for (device, bytes) in wanted.limits {
        set(device, Some(bytes), Some(wanted.on_limit));
    }
    *COMPLAINT.lock() = complaint;
}

/// What to tell the user of a limit that memlab does not understand, once.
pub fn complaint() -> Option<String> {
    COMPLAINT.lock().take()
}

/// Changes the limit of a device, or of all: `bytes` `None` lifts it, `on_limit` `None` leaves what happens there as it was.
/// What the process holds already stays, also beyond the limit.
pub fn set(device: Option<i32>, bytes: Option<u64>, on_limit: Option<OnLimit>) {
    let _one_at_a_time = SETTING.lock();
    for (ordinal, card) in (0..).zip(&CARDS) {
        if device.is_some_and(|device| device != ordinal) {
            continue;
        }
        if let Some(on_limit) = on_limit {
            card.spills.store(on_limit == OnLimit::Spill, Ordering::Relaxed);
        }
        card.look_up_again();
        card.limit.store(bytes.unwrap_or(NO_LIMIT), Ordering::Relaxed);
    }
    ANY.store(CARDS.iter().any(|card| card.limit().is_some()), Ordering::Relaxed);
    if let Some(recorder) = Recorder::current() {
        let devices = 0..DEVICES as i32;
        devices.filter(|ordinal| device.is_none_or(|device| device == *ordinal)).for_each(|ordinal| {
            if recorder.knows_device(ordinal) {
                record(recorder, ordinal);
            }
        });
    }
}

/// Writes a device's limit into the trace, if it differs from what stands there.
pub fn record(recorder: &Recorder, device: i32) {
    let Some(card) = card(device) else { return };
    let limit = card.limit.load(Ordering::Relaxed);
    if card.recorded.swap(limit, Ordering::Relaxed) == limit && limit == NO_LIMIT {
        return;
    }
    let on_limit = OnLimit::spilling(card.spills.load(Ordering::Relaxed)).name();
    recorder.log.append(encode::limit(&mut LineBuffer::<128>::new(), device, card.limit(), on_limit));
}

/// A device that has a limit.
pub struct Status {
    pub device: i32,
    pub limit_bytes: u64,
    /// The process's footprint on the device.
    pub used_bytes: u64,
    pub spilled_bytes: u64,
    pub on_limit: OnLimit,
}

/// The devices that have a limit, of those the process sees.
pub fn status() -> Vec<Status> {
    let devices = mover::driver::device_count().clamp(0, DEVICES as i32);
    (0..devices)
        .filter_map(|device| {
            let (card, limit_bytes) = limited(device)?;
            let on_limit = OnLimit::spilling(card.spills.load(Ordering::Relaxed));
            // What was spilled may have come back.
            let on_host = mover::host_bytes(device).map_or(u64::MAX, |bytes| bytes + spill::pinned_on(device));
            let spilled_bytes = card.spilled.load(Ordering::Relaxed).min(on_host);
            Some(Status { device, limit_bytes, used_bytes: outside::used_now(device, card), spilled_bytes, on_limit })
        })
        .collect()
}

/// The same as `status` on the control socket has it.
pub fn described() -> Value {
    let entry = |status: Status| {
        json!({
            "device": status.device,
            "limit_bytes": status.limit_bytes,
            "used_bytes": status.used_bytes,
            "spilled_bytes": status.spilled_bytes,
            "on_limit": status.on_limit.name(),
        })
    };
    status().into_iter().map(entry).collect()
}

/// Bytes that the process may still take of a device; all of them where it has no limit.
pub fn room(device: i32) -> u64 {
    let Some((card, limit)) = limited(device) else { return u64::MAX };
    outside::look_up(device, card);
    limit.saturating_sub(card.used())
}

/// What becomes of a wish for memory.
pub enum Admission {
    /// The real call may be made.
    Granted(Reservation),
    /// The call is to answer that the card is full.
    Refused,
    /// The memory is to come from the host.
    Spill,
}

/// Decides on `bytes` (rounded: [`footprint`]) of device memory before the driver is asked for them. `caller` is the
/// address of the driver's caller: where it helps, PyTorch's caching allocator is refused once before anything spills, so
/// that it gives up what it keeps first.
pub fn admit(device: i32, bytes: u64, caller: usize) -> Admission {
    decide(device, bytes, |card, limit| {
        let kept = card.kept_by_allocator.load(Ordering::Relaxed);
        let room_at_best = limit.saturating_sub(card.used()).saturating_add(kept);
        room_at_best < bytes || spill::is_due(device, bytes, caller)
    })
}

fn decide(device: i32, bytes: u64, spills_now: impl FnOnce(&Card, u64) -> bool) -> Admission {
    let Some((card, limit)) = limited(device) else { return Admission::Granted(Reservation::for_nothing(device)) };
    outside::look_up_if_old(device, card);
    let mut granted = reserve(device, card, bytes);
    if granted.is_none() && bytes <= limit {
        // Perhaps only what pools keep stands in the way, or what is known of the rest is no longer so.
        outside::make_room(device, card);
        granted = reserve(device, card, bytes);
    }
    match granted {
        Some(reservation) => Admission::Granted(reservation),
        None if card.spills.load(Ordering::Relaxed) && spills_now(card, limit) => Admission::Spill,
        None => Admission::Refused,
    }
}

fn reserve(device: i32, card: &Card, bytes: u64) -> Option<Reservation> {
    let flight = Flight::begin();
    card.book_if_it_fits(bytes).then(|| Reservation { device, bytes, _flight: Some(flight) })
}

/// Room for an allocation that is being made; dropped, it is given back.
pub struct Reservation {
    device: i32,
    bytes: u64,
    /// None where there is no limit.
    _flight: Option<Flight>,
}

impl Reservation {
    const fn for_nothing(device: i32) -> Self {
        Self { device, bytes: 0, _flight: None }
    }

    /// The allocation was made and took `bytes`, which [`released`] will be told of.
    pub fn commit(mut self, bytes: u64) {
        let reserved = std::mem::take(&mut self.bytes);
        let Some(card) = card(self.device) else { return };
        if bytes >= reserved { card.book(bytes - reserved) } else { card.strike_off(reserved - bytes) }
    }

    /// The allocation was made, but nobody will say when it ends.
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
            card.strike_off(self.bytes);
        }
    }
}

/// PyTorch's caching allocator has `bytes` reserved that it has not handed out.
#[inline]
pub fn allocator_keeps(device: i32, bytes: u64) {
    if let Some((card, _)) = limited(device) {
        card.kept_by_allocator.store(bytes, Ordering::Relaxed);
    }
}

/// The driver took `bytes` back.
pub fn released(device: i32, bytes: u64) {
    if let Some(card) = card(device) {
        card.strike_off(bytes);
    }
}

/// The driver handed out `bytes` that nobody asked [`admit`] for.
pub fn taken(device: i32, bytes: u64) {
    if let Some(card) = card(device) {
        card.book(bytes);
    }
}

/// `bytes` that belong on the device lie in host memory.
pub fn spilled(device: i32, bytes: u64) {
    if let Some(card) = card(device) {
        card.spilled.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// They no longer do.
pub fn unspilled(device: i32, bytes: u64) {
    if let Some(card) = card(device) {
        let less = |spilled: u64| Some(spilled.saturating_sub(bytes));
        let _ = card.spilled.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
}

thread_local! {
    /// How many flights of this thread's lie within each other: runtime calls end in the driver's.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// A call under way that takes or gives back device memory.
pub struct Flight {
    _under_way: Option<RwLockReadGuard<'static, ()>>,
}

impl Flight {
    /// Begins one. Waits for a comparison of books and card to end, but not for long: none takes long, and in a forked child
    /// nobody may be left to end it.
    pub fn begin() -> Self {
        let outermost = DEPTH.with(|depth| depth.replace(depth.get() + 1) == 0);
        Self { _under_way: outermost.then(|| UNDER_WAY.try_read_for(PATIENCE)).flatten() }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        DEPTH.with(|depth| depth.set(depth.get().saturating_sub(1)));
    }
}

/// Bytes that an allocation takes off the card: what the driver rounds up to. 0 for what is counted otherwise (pools) or
/// lies elsewhere.
pub fn footprint(kind: DriverKind, bytes: u64) -> u64 {
    match kind {
        DriverKind::Device | DriverKind::Managed | DriverKind::Array => rounded(bytes),
        DriverKind::Physical => bytes,
        _ => 0,
    }
}

/// From half a granule on the driver takes whole ones; smaller blocks share one.
fn rounded(bytes: u64) -> u64 {
    const SMALL: u64 = 512;
    let step = if bytes >= GRANULE / 2 { GRANULE } else { SMALL };
    bytes.max(1).checked_next_multiple_of(step).unwrap_or(bytes)
}

/// What the device's free and total bytes are to the program. Asks anew what it holds.
pub fn seen(device: i32, free: u64, total: u64) -> (u64, u64) {
    let Some((card, limit)) = limited(device) else { return (free, total) };
    outside::look_up(device, card);
    (free.min(limit.saturating_sub(card.used())), total.min(limit))
}

/// The same for a total alone.
pub fn seen_total(device: i32, total: u64) -> u64 {
    limited(device).map_or(total, |(_, limit)| total.min(limit))
}

/// A forked child holds nothing on any device, whatever its parent did. Its limits are its parent's.
pub fn forget_in_child() {
    free_in_child(&SETTING);
    free_in_child(&COMPLAINT);
    for card in &CARDS {
        card.booked.store(0, Ordering::Relaxed);
        card.reserved.store(0, Ordering::Relaxed);
        card.spilled.store(0, Ordering::Relaxed);
        card.look_up_again();
    }
    calls::forget_in_child();
    outside::forget_in_child();
    spill::forget_in_child();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limited_card(limit: u64) -> Card {
        let card = Card::new();
        card.limit.store(limit, Ordering::Relaxed);
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
        card.elsewhere.store(40, Ordering::Relaxed);
        // THEN 60 bytes fit, and not one more
        assert!(card.book_if_it_fits(60));
        assert!(!card.book_if_it_fits(1));
        assert_eq!(card.used(), 100);
        // AND what is given back can be had again
        card.strike_off(10);
        assert!(!card.book_if_it_fits(11));
        assert!(card.book_if_it_fits(10));
    }

    #[test]
    fn what_was_booked_but_left_the_card_does_not_count() {
        let card = limited_card(100);
        card.book(90);
        card.elsewhere.store(-50, Ordering::Relaxed);
        assert_eq!(card.used(), 40);
        assert!(card.book_if_it_fits(60));
        card.elsewhere.store(i64::MIN, Ordering::Relaxed);
        assert_eq!(card.used(), 0, "never below nothing");
    }

    /// A small generator, so that a failing seed can be run again.
    struct Random(u64);

    impl Random {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % bound
        }
    }

    #[test]
    fn threads_at_the_border_never_exceed_it() {
        const LIMIT: u64 = 10_000;
        for seed in 1..=8 {
            // GIVEN a card most of which is taken, and threads that take and give back at random
            let (card, held, most) = (limited_card(LIMIT), AtomicU64::new(0), AtomicU64::new(0));
            card.elsewhere.store(4_000, Ordering::Relaxed);
            std::thread::scope(|scope| {
                for thread in 0..4u64 {
                    let (card, held, most) = (&card, &held, &most);
                    scope.spawn(move || {
                        let mut random = Random(seed * 0x9e37_79b9 + thread + 1);
                        let mut mine = Vec::new();
                        for _ in 0..5_000 {
                            if random.below(2) == 0 {
                                let bytes = 1 + random.below(900);
                                if card.book_if_it_fits(bytes) {
                                    let now = held.fetch_add(bytes, Ordering::AcqRel) + bytes;
                                    most.fetch_max(now, Ordering::AcqRel);
                                    mine.push(bytes);
                                }
                            } else if !mine.is_empty() {
                                let bytes = mine.swap_remove(random.below(mine.len() as u64) as usize);
                                held.fetch_sub(bytes, Ordering::AcqRel);
                                card.strike_off(bytes);
                            }
                        }
                        for bytes in mine {
                            held.fetch_sub(bytes, Ordering::AcqRel);
                            card.strike_off(bytes);
                        }
                    });
                }
            });
            // THEN together they never held more than there was, came close to it, and in the end nothing is booked
            let most = most.into_inner();
            assert!(most <= LIMIT - 4_000, "seed {seed}: {most}");
            assert!(most > (LIMIT - 4_000) * 9 / 10, "seed {seed}: only {most}");
            assert_eq!(card.booked.into_inner(), 0, "seed {seed}");
        }
    }

    /// The device whose card the test below has for itself.
    const MINE: i32 = 63;

    #[test]
    fn a_reservation_that_comes_to_nothing_is_given_back() {
        let card = card(MINE).unwrap();
        let reserve = |bytes| Reservation { device: MINE, bytes, _flight: Some(Flight::begin()) };
        card.book(700);
        // WHEN the real call fails, THEN its bytes are free again
        drop(reserve(700));
        assert_eq!(card.booked.load(Ordering::Relaxed), 0);
        // WHEN it succeeds, THEN what it really took stays booked, be it more or less
        card.book(100);
        reserve(100).commit(160);
        card.book(100);
        reserve(100).commit(40);
        assert_eq!(card.booked.load(Ordering::Relaxed), 200);
        // AND without a limit it is booked all the same: one may be set later
        Reservation::for_nothing(MINE).commit(8);
        released(MINE, 208);
        assert_eq!(card.booked.load(Ordering::Relaxed), 0);
        // AND no device is too many
        released(64, 1);
        taken(-1, 1);
    }
}
