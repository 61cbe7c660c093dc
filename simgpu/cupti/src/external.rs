//! External correlation ids: what a program calls the part of it that a thread is in.

use std::cell::RefCell;

/// Kinds below this number exist (`CUpti_ExternalCorrelationKind`).
const KINDS: usize = 6;

thread_local! {
    /// The ids of each kind, the current one last.
    static IDS: RefCell<[Vec<u64>; KINDS]> = const { RefCell::new([const { Vec::new() }; KINDS]) };
}

fn with<R>(kind: u32, body: impl FnOnce(&mut Vec<u64>) -> R) -> Option<R> {
    IDS.try_with(|ids| Some(body(ids.borrow_mut().get_mut(kind as usize)?))).ok().flatten()
}

/// Enters a part; false if there is no such kind.
pub fn push(kind: u32, id: u64) -> bool {
    kind > 0 && with(kind, |ids| ids.push(id)).is_some()
}

/// Leaves a part: its id, or none if the thread is in no part of this kind; None if there is no such kind.
pub fn pop(kind: u32) -> Option<Option<u64>> {
    if kind == 0 { None } else { with(kind, Vec::pop) }
}

/// The part of each kind that the thread is in: kind and id.
pub fn current() -> Vec<(u32, u64)> {
    let last = |(kind, ids): (usize, &Vec<u64>)| Some((kind as u32, *ids.last()?));
    IDS.try_with(|ids| ids.borrow().iter().enumerate().filter_map(last).collect()).unwrap_or_default()
}
