//! Timestamps of the system's clock, or of a clock that the program sets.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// `CUpti_TimestampCallbackFunc`.
pub type Timestamp = unsafe extern "C" fn() -> u64;

/// Function of the program's clock; 0 for the system's clock.
static OWN: AtomicUsize = AtomicUsize::new(0);

static GENERATION: AtomicUsize = AtomicUsize::new(0);

/// Time at which the program's clock was set, by the system's clock and by the program's.
static SET_AT: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

/// Ticks per second of the program's clock; 0 before it is measured.
static PER_SECOND: AtomicU64 = AtomicU64::new(0);

const SECOND: u64 = 1_000_000_000;

/// Minimum measuring time of the program's clock: a read takes tens of nanoseconds, so the error is below 1 in 10,000.
const MEASURED_NS: u64 = 1_000_000;

fn system() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to a local.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &mut time) };
    time.tv_sec as u64 * SECOND + time.tv_nsec as u64
}

fn own() -> Option<Timestamp> {
    let address = OWN.load(Ordering::Acquire);
    // SAFETY: `set` stores functions of this type only, and 0 is `None`.
    unsafe { std::mem::transmute::<usize, Option<Timestamp>>(address) }
}

/// Returns the time, in nanoseconds since 1970 or in ticks of the program's clock.
pub fn now() -> u64 {
    // SAFETY: the program promised a function that can be called from any thread.
    own().map_or_else(system, |own| unsafe { own() })
}

/// Returns how often the clock was set: earlier times are of another clock.
pub fn generation() -> usize {
    GENERATION.load(Ordering::Acquire)
}

/// Sets the program's clock.
pub fn set(clock: Timestamp) {
    // SAFETY: as in `now`.
    let time = unsafe { clock() };
    SET_AT[0].store(system(), Ordering::Relaxed);
    SET_AT[1].store(time, Ordering::Relaxed);
    PER_SECOND.store(0, Ordering::Relaxed);
    OWN.store(clock as usize, Ordering::Release);
    GENERATION.fetch_add(1, Ordering::AcqRel);
}

/// Converts nanoseconds to ticks of the clock. PyTorch's clock counts cycles, although CUPTI asks for nanoseconds.
pub fn steps(nanoseconds: u64) -> u64 {
    let Some(own) = own() else { return nanoseconds };
    let mut per_second = PER_SECOND.load(Ordering::Relaxed);
    if per_second == 0 {
        let elapsed = loop {
            let elapsed = system().saturating_sub(SET_AT[0].load(Ordering::Relaxed));
            if elapsed >= MEASURED_NS {
                break elapsed;
            }
        };
        // SAFETY: as in `now`.
        let steps = unsafe { own() }.saturating_sub(SET_AT[1].load(Ordering::Relaxed));
        per_second = scaled(steps, SECOND, elapsed).max(1);
        PER_SECOND.store(per_second, Ordering::Relaxed);
    }
    scaled(nanoseconds, per_second, SECOND)
}

/// Returns `value * times / by`.
fn scaled(value: u64, times: u64, by: u64) -> u64 {
    (u128::from(value) * u128::from(times) / u128::from(by)) as u64
}
