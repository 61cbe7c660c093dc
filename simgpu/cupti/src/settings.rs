//! Enabled records.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::names::Domain;

/// Kinds below this number exist (`CUpti_ActivityKind`).
pub const KINDS: u32 = 60;

/// Callback ids are below this number.
pub const CALLBACKS: usize = 1024;

/// One bit per kind.
static WANTED: AtomicU64 = AtomicU64::new(0);

/// Functions whose records are disabled, by domain.
static UNWANTED: [[AtomicBool; CALLBACKS]; 2] = [const { [const { AtomicBool::new(false) }; CALLBACKS] }; 2];

/// Enables or disables records of a kind.
pub fn want(kind: u32, wanted: bool) {
    if wanted {
        WANTED.fetch_or(1 << kind, Ordering::Relaxed);
    } else {
        WANTED.fetch_and(!(1 << kind), Ordering::Relaxed);
    }
}

/// Disables records of all kinds.
pub fn want_nothing() {
    WANTED.store(0, Ordering::Relaxed);
}

/// Returns true if records of a kind are enabled.
pub fn is_wanted(kind: u32) -> bool {
    WANTED.load(Ordering::Relaxed) & (1 << kind) != 0
}

/// Returns true if records of any kind are enabled.
pub fn is_any_wanted() -> bool {
    WANTED.load(Ordering::Relaxed) != 0
}

/// Enables or disables the records of a function's calls; returns false for an unknown function.
pub fn want_calls(domain: Domain, callback: u32, wanted: bool) -> bool {
    let function = UNWANTED[domain as usize - 1].get(callback as usize);
    function.map(|unwanted| unwanted.store(!wanted, Ordering::Relaxed)).is_some()
}

/// Returns true if the records of a function's calls are enabled.
pub fn are_calls_wanted(domain: Domain, callback: u32) -> bool {
    UNWANTED[domain as usize - 1].get(callback as usize).is_some_and(|unwanted| !unwanted.load(Ordering::Relaxed))
}
