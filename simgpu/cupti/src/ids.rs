//! Small numbers that stand for handles in records, and names that outlive their module.

use std::collections::{HashMap, HashSet};
use std::ffi::CStr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Number of the default stream on real cards.
const DEFAULT_STREAM: u32 = 7;

/// Number of the program's first stream on real cards.
const FIRST_STREAM: u32 = 13;

/// Numbers by handle, in the order of their first use.
#[derive(Default)]
struct Numbers(HashMap<usize, u32>);

impl Numbers {
    fn of(&mut self, handle: usize, first: u32) -> u32 {
        let next = first + self.0.len() as u32;
        *self.0.entry(handle).or_insert(next)
    }
}

#[derive(Default)]
struct Ids {
    contexts: Numbers,
    streams: Numbers,
    graphs: Numbers,
    nodes: Numbers,
    names: HashSet<&'static CStr>,
}

fn ids() -> MutexGuard<'static, Option<Ids>> {
    static IDS: Mutex<Option<Ids>> = Mutex::new(None);
    IDS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the number of a context.
pub fn context(handle: usize) -> u32 {
    ids().get_or_insert_default().contexts.of(handle, 1)
}

/// Returns the number of a stream. All handles of the default stream have the same.
pub fn stream(handle: usize) -> u32 {
    match handle {
        0 | 1 => DEFAULT_STREAM,
        _ => ids().get_or_insert_default().streams.of(handle, FIRST_STREAM),
    }
}

/// Returns the number of an executable graph; 0 for none.
pub fn graph(handle: usize) -> u32 {
    if handle == 0 { 0 } else { ids().get_or_insert_default().graphs.of(handle, 1) }
}

/// Returns the number of a node; 0 for none.
pub fn node(handle: usize) -> u64 {
    if handle == 0 { 0 } else { ids().get_or_insert_default().nodes.of(handle, 1).into() }
}

/// Returns a permanent copy of a name.
pub fn name(name: &CStr) -> &'static CStr {
    let mut ids = ids();
    let names = &mut ids.get_or_insert_default().names;
    if let Some(known) = names.get(name) {
        return known;
    }
    let lasting: &'static CStr = Box::leak(name.into());
    names.insert(lasting);
    lasting
}
