//! Time of day, and timeouts for other processes.

use std::sync::LazyLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Nanoseconds since 1970.
pub fn now_unix_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// Multiplies `limit` by `MEMLAB_PATIENCE`: healthy processes answer late on an overloaded machine.
pub fn patience(limit: Duration) -> Duration {
    static FACTOR: LazyLock<u32> = LazyLock::new(|| {
        let factor = std::env::var("MEMLAB_PATIENCE").ok().and_then(|factor| factor.parse().ok());
        factor.unwrap_or(1)
    });
    limit.saturating_mul(*FACTOR)
}
