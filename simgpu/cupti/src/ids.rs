//! The small numbers that records have for handles, and names that stay when a module is unloaded.

use std::collections::{HashMap, HashSet};
use std::ffi::CStr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What real cards call the default stream.
const DEFAULT_STREAM: u32 = 7;

/// What real cards call the first stream that a program makes.
const FIRST_STREAM: u32 = 13;

/// Numbers by handle, in the order in which they were asked for.
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

/// The number of a context.
pub fn context(handle: usize) -> u32 {
    ids().get_or_insert_default().contexts.of(handle, 1)
}

/// The number of a stream. All handles of the default stream have the same.
pub fn stream(handle: usize) -> u32 {
    match handle {
        0 | 1 => DEFAULT_STREAM,
        _ => ids().get_or_insert_default().streams.of(handle, FIRST_STREAM),
    }
}

/// The number of an executable graph; 0 for none.
pub fn graph(handle: usize) -> u32 {
    if handle == 0 { 0 } else { ids().get_or_insert_default().graphs.of(handle, 1) }
}

/// The number of a node; 0 for none.
pub fn node(handle: usize) -> u64 {
    if handle == 0 { 0 } else { ids().get_or_insert_default().nodes.of(handle, 1).into() }
}

/// A copy of a name that stays.
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
