//! External correlation ids: the program's ids for the part of it that a thread runs.

use std::cell::RefCell;

/// Kinds below this number exist (`CUpti_ExternalCorrelationKind`).
const KINDS: usize = 6;

thread_local! {
    /// Ids of each kind, the current one last.
    static IDS: RefCell<[Vec<u64>; KINDS]> = const { RefCell::new([const { Vec::new() }; KINDS]) };
}

fn with<R>(kind: u32, body: impl FnOnce(&mut Vec<u64>) -> R) -> Option<R> {
    IDS.try_with(|ids| Some(body(ids.borrow_mut().get_mut(kind as usize)?))).ok().flatten()
}

/// Enters a part; returns false for an unknown kind.
pub fn push(kind: u32, id: u64) -> bool {
    kind > 0 && with(kind, |ids| ids.push(id)).is_some()
}

/// Leaves a part and returns its id, if the thread is in a part of this kind. Returns `None` for an unknown kind.
pub fn pop(kind: u32) -> Option<Option<u64>> {
    if kind == 0 { None } else { with(kind, Vec::pop) }
}

/// Returns kind and id of the thread's current part of each kind.
pub fn current() -> Vec<(u32, u64)> {
    let last = |(kind, ids): (usize, &Vec<u64>)| Some((kind as u32, *ids.last()?));
    IDS.try_with(|ids| ids.borrow().iter().enumerate().filter_map(last).collect()).unwrap_or_default()
}
