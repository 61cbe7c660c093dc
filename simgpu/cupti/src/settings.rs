//! Which records are wanted.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::names::Domain;

/// Kinds below this number exist (`CUpti_ActivityKind`).
pub const KINDS: u32 = 60;

/// Callback ids are below this number.
pub const CALLBACKS: usize = 1024;

/// A bit for each kind.
static WANTED: AtomicU64 = AtomicU64::new(0);

/// Functions that records are not wanted of, by domain.
static UNWANTED: [[AtomicBool; CALLBACKS]; 2] = [const { [const { AtomicBool::new(false) }; CALLBACKS] }; 2];

/// Sets whether records of a kind are wanted.
pub fn want(kind: u32, wanted: bool) {
    if wanted {
        WANTED.fetch_or(1 << kind, Ordering::Relaxed);
    } else {
        WANTED.fetch_and(!(1 << kind), Ordering::Relaxed);
    }
}

/// No records of any kind are wanted.
pub fn want_nothing() {
    WANTED.store(0, Ordering::Relaxed);
}

/// Whether records of a kind are wanted.
pub fn is_wanted(kind: u32) -> bool {
    WANTED.load(Ordering::Relaxed) & (1 << kind) != 0
}

/// Whether records of any kind are wanted.
pub fn is_any_wanted() -> bool {
    WANTED.load(Ordering::Relaxed) != 0
}

/// Sets whether the records of a function's calls are wanted; false if there is no such function.
pub fn want_calls(domain: Domain, callback: u32, wanted: bool) -> bool {
    let function = UNWANTED[domain as usize - 1].get(callback as usize);
    function.map(|unwanted| unwanted.store(!wanted, Ordering::Relaxed)).is_some()
}

/// Whether they are.
pub fn are_calls_wanted(domain: Domain, callback: u32) -> bool {
    UNWANTED[domain as usize - 1].get(callback as usize).is_some_and(|unwanted| !unwanted.load(Ordering::Relaxed))
}
