//! Results of the rules.

use memlab_units::format::size;

use crate::advice::block_lifetimes::Change;
use crate::advice::cost::Cost;
use crate::advice::report::{Advice, Figure, Kind, RejectedAdvice};

/// Result of a rule.
#[derive(Default)]
pub(crate) struct Candidates {
    pub advice: Vec<Advice>,
    pub tried: Vec<RejectedAdvice>,
    /// Changes of the accepted advice that changes allocations.
    pub changes: Vec<(Kind, Cost, Change)>,
}

impl Candidates {
    /// Accepts advice that saves at least 1 % of the figure, and lists the rest as tried.
    pub fn add(&mut self, advice: Advice, change: Option<Change>) {
        if advice.saved_bytes > 0 && advice.saved_bytes >= (advice.bytes_after + advice.saved_bytes) / 100 {
            self.changes.extend(change.map(|change| (advice.kind, advice.cost, change)));
            self.advice.push(advice);
        } else {
            let (saved, after) = (size(advice.saved_bytes), size(advice.bytes_after));
            let peak = if advice.saved_bytes == 0 { "stays at" } else { "would be" };
            let because = match advice.figure {
                Figure::Reserved => format!("saves {saved}: the maximum reserved {peak} {after}"),
                figure => format!("saves {saved}: the peak {peak} {after} {}", figure.as_str()),
            };
            self.tried.push(RejectedAdvice { kind: advice.kind, place: advice.place, because });
        }
    }

    pub fn reject(&mut self, kind: Kind, place: impl Into<String>, because: impl Into<String>) {
        self.tried.push(RejectedAdvice { kind, place: place.into(), because: because.into() });
    }
}
