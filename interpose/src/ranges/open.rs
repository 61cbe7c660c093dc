//! Open ranges of a thread.
//!
//! They are kept even without a recording: a range may be opened before the program first uses CUDA, and stays open in a
//! forked child.

use std::cell::RefCell;

use super::table::Ranges;
use interpose_base::log::Log;

/// Maximum number of ranges open on a thread at a time.
///
/// Deeper ranges count in the range around them.
const MAX_OPEN_RANGES: usize = 128;

/// Origin of a range: a range is closed only by its own kind.
///
/// Other NVTX domains have their address.
pub type Domain = usize;

/// The domain of `memlab_range_push`.
pub const MEMLAB: Domain = 0;

/// An open range.
struct Open {
    domain: Domain,
    /// Name of the range; `None` if the table of names is full.
    name: Option<&'static str>,
    /// Id of the range in the trace.
    id: u32,
}

/// The open ranges of a thread, the outermost first.
struct OpenRanges {
    open: Vec<Open>,
    /// Number of open ranges that have ids in the trace of recorder `recorder`.
    numbered: usize,
    recorder: u64,
    /// Number of ranges that are too deep to be kept.
    too_deep: u32,
}

thread_local! {
    static OPEN_RANGES: RefCell<OpenRanges> =
        const { RefCell::new(OpenRanges { open: Vec::new(), numbered: 0, recorder: 0, too_deep: 0 }) };
}

/// Changes the thread's ranges.
///
/// Does nothing if the thread is ending, or a signal handler interrupted another change.
fn change(change: impl FnOnce(&mut OpenRanges)) {
    let _ = OPEN_RANGES.try_with(|open| {
        if let Ok(mut open) = open.try_borrow_mut() {
            change(&mut open);
        }
    });
}

pub fn push(domain: Domain, name: Option<&'static str>) {
    change(|ranges| {
        if ranges.open.len() < MAX_OPEN_RANGES && ranges.too_deep == 0 {
            ranges.open.push(Open { domain, name, id: 0 });
        } else {
            ranges.too_deep += 1;
        }
    });
}

/// Closes the innermost range of the domain, if one is open.
pub fn pop(domain: Domain) {
    change(|ranges| {
        if ranges.too_deep > 0 {
            ranges.too_deep -= 1;
        } else if let Some(at) = ranges.open.iter().rposition(|open| open.domain == domain) {
            ranges.open.remove(at);
            // Ranges of other domains inside it are now inside the range around it.
            ranges.numbered = ranges.numbered.min(at);
        }
    });
}

/// Returns the number of ranges open on this thread, and the id of the innermost (0: none).
///
/// `around` is (index, parent) of a range that is inside another range than the one before it.
pub fn innermost(recorder: u64, log: &Log, ranges: &Ranges, around: Option<(usize, u32)>) -> (u32, u32) {
    let mut innermost = (0, 0);
    change(|open| {
        if open.recorder != recorder {
            (open.recorder, open.numbered) = (recorder, 0);
        }
        for at in open.numbered..open.open.len() {
            let parent = match around {
                Some((index, parent)) if index == at => parent,
                _ => at.checked_sub(1).map_or(0, |before| open.open[before].id),
            };
            let range = &mut open.open[at];
            range.id = range.name.map_or(parent, |name| ranges.id(log, parent, name));
        }
        open.numbered = open.open.len();
        innermost = (open.open.len() as u32, open.open.last().map_or(0, |range| range.id));
    });
    innermost
}
