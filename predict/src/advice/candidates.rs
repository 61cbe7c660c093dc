//! What came of the rules.

use memlab_units::format::size;

use crate::advice::block_lifetimes::Change;
use crate::advice::cost::Cost;
use crate::advice::report::{Advice, Kind, RejectedAdvice};

/// What came of a rule.
#[derive(Default)]
pub(crate) struct Candidates {
    pub advice: Vec<Advice>,
    pub tried: Vec<RejectedAdvice>,
    /// The changes of what is advised, where allocations change.
    pub changes: Vec<(Kind, Cost, Change)>,
}

impl Candidates {
    /// It helps if it saves at least a hundredth of what there is; otherwise it was tried.
    pub fn add(&mut self, advice: Advice, change: Option<Change>) {
        if advice.saved_bytes > 0 && advice.saved_bytes >= (advice.bytes_after + advice.saved_bytes) / 100 {
            self.changes.extend(change.map(|change| (advice.kind, advice.cost, change)));
            self.advice.push(advice);
        } else {
            let (saved, after) = (size(advice.saved_bytes), size(advice.bytes_after));
            let because = format!("saves {saved}: the peak would be {after} {}", advice.figure.as_str());
            self.tried.push(RejectedAdvice { kind: advice.kind, place: advice.place, because });
        }
    }

    pub fn reject(&mut self, kind: Kind, place: impl Into<String>, because: impl Into<String>) {
        self.tried.push(RejectedAdvice { kind, place: place.into(), because: because.into() });
    }
}
