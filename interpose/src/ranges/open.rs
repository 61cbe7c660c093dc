//! The ranges that are open on a thread. They are kept whether or not anything is recorded: a range may be opened before
//! the program first uses CUDA, and stays open in a forked child.

use std::cell::RefCell;

use super::table::Ranges;
use interpose_base::log::Log;

/// The most ranges open on a thread at a time. Deeper ones count in the range around them.
const MAX_OPEN_RANGES: usize = 128;

/// Where a range comes from: one is closed by its own kind only. Other NVTX domains have their address.
pub type Domain = usize;

/// `memlab_range_push`.
pub const MEMLAB: Domain = 0;

/// An open range.
struct Open {
    domain: Domain,
    /// `None`: there are too many names.
    name: Option<&'static str>,
    /// Its id in the trace.
    id: u32,
}

/// The open ranges of a thread, the outermost first.
struct OpenRanges {
    open: Vec<Open>,
    /// How many of them have the ids that they have in the trace of recorder `recorder`.
    numbered: usize,
    recorder: u64,
    /// Ranges that are too deep to be kept.
    too_deep: u32,
}

thread_local! {
    static OPEN_RANGES: RefCell<OpenRanges> =
        const { RefCell::new(OpenRanges { open: Vec::new(), numbered: 0, recorder: 0, too_deep: 0 }) };
}

/// Nothing if the thread is ending, or a signal handler interrupted another change.
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
            // Those inside it, of other domains, are inside the range around it now.
            ranges.numbered = ranges.numbered.min(at);
        }
    });
}

/// How many ranges are open on this thread, and the id of the innermost (0: none). `around`: where the range with this
/// index is inside another range than the one before it.
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
