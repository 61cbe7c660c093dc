//! Ranges of a trace: a range is a name inside another range, and has an id.
//!
//! As with other names ([`crate::intern`]), the definition is appended before any thread can learn the id.

use hashbrown::HashMap;
use memlab_trace::encode::{self, LineBuffer};
use parking_lot::Mutex;
use rustc_hash::FxBuildHasher;

use interpose_base::log::Log;
use interpose_base::stderr::print_message;

/// Maximum number of ranges in a trace.
///
/// Ranges can be nested in any order, so a trace can have many more ranges than names.
const MAX_RANGES: usize = 16384;

#[derive(Default)]
struct Table {
    /// Ids by the range around, and the name (by address: a name is kept once).
    ids: HashMap<(u32, *const u8), u32, FxBuildHasher>,
    /// The range around each range, by id, from 1.
    parents: Vec<u32>,
    is_full: bool,
}

// SAFETY: the addresses are only compared.
unsafe impl Send for Table {}

#[derive(Default)]
pub struct Ranges {
    table: Mutex<Table>,
}

impl Ranges {
    /// Returns the range with this name inside `parent` (0: none); `parent` itself if the table is full.
    pub fn id(&self, log: &Log, parent: u32, name: &'static str) -> u32 {
        let mut table = self.table.lock();
        if let Some(&id) = table.ids.get(&(parent, name.as_ptr())) {
            return id;
        }
        if table.parents.len() >= MAX_RANGES {
            if !std::mem::replace(&mut table.is_full, true) {
                print_message(&format!(
                    "more than {MAX_RANGES} ranges: further ones count as part of the range around them"
                ));
            }
            return parent;
        }
        table.parents.push(parent);
        let id = table.parents.len() as u32;
        log.append(encode::range(&mut LineBuffer::<1024>::new(), id, parent, name));
        table.ids.insert((parent, name.as_ptr()), id);
        id
    }

    /// Returns true if `range` is `outer` or inside it.
    pub fn is_inside(&self, range: u32, outer: u32) -> bool {
        let table = self.table.lock();
        let mut at = range;
        // A parent has a lower id.
        while at > outer {
            at = table.parents.get(at as usize - 1).copied().unwrap_or(0);
        }
        at == outer
    }
}
