//! Changes from one moment to another.

use memlab_trace::{ByScope, Category, Scope};

use super::change::{Change, order};
use super::holders::{self, HolderChanges};
use super::layers::{self, LayerChange};
use super::lines::{self, LineChange, LineFigures};
use super::ranges::{self, RangeChange};
use super::side::Side;
use super::times::{self, TimeDifference};
use memlab_base::holdings::LayerName;

/// Differences between two moments.
#[derive(Clone)]
pub struct Difference {
    /// First moment.
    pub before: Side,
    /// Second moment.
    pub after: Side,
    /// Allocated, reserved and used bytes.
    pub totals: [(&'static str, Change); 3],
    /// Changes by category, greatest first.
    pub categories: Vec<(Category, Change)>,
    /// Changes by line, greatest first; the same memory in each scope.
    pub lines: ByScope<Vec<LineChange>>,
    /// Holders of the memory of the displayed lines that grew; `None`: none grew, or neither trace has a search.
    pub holders: Option<HolderChanges>,
    /// Scope of the displayed lines.
    pub scope: Scope,
    /// Changes by layer, greatest first.
    pub layers: Vec<LayerChange>,
    /// Changes by range, for allocations in ranges that the program names, greatest first.
    pub ranges: Vec<RangeChange>,
    /// Changes of GPU time over whole runs, if both recorded it and are not the same run.
    pub times: Option<TimeDifference>,
}

impl Difference {
    /// Compares two moments.
    ///
    /// `scope`: scope of the displayed lines. `None`: library lines, where the user's lines only call them in one of
    /// the two.
    pub fn new(before: Side, after: Side, scope: Option<Scope>) -> Self {
        let (a, b) = (&before.held, &after.held);
        let of = |before: u64, after: u64| Change { before, after };
        let held = |side: &Side, wanted: Category| {
            side.held.categories.iter().find(|(category, _)| *category == wanted).map_or(0, |(_, bytes)| *bytes)
        };
        let categories = Category::ALL.map(|category| (category, of(held(&before, category), held(&after, category))));
        let mut categories = categories.to_vec();
        categories.retain(|(_, change)| *change != Change::default());
        categories.sort_by_key(|(_, change)| order(*change));
        let lines = ByScope::from_fn(|scope| {
            let [held_before, held_after] = [&before, &after].map(|side| held_lines(side, scope));
            lines::compare((&before, &held_before), (&after, &held_after), scope)
        });
        let scope = scope.unwrap_or(match before.dominant_library_call || after.dominant_library_call {
            true => Scope::Libraries,
            false => Scope::Users,
        });
        Self {
            totals: [
                ("allocated", of(a.allocated_bytes, b.allocated_bytes)),
                ("reserved", of(a.reserved_bytes, b.reserved_bytes)),
                ("used", of(a.used_bytes, b.used_bytes)),
            ],
            categories,
            holders: holders::compare(&before, &after, &lines[scope], scope),
            lines,
            scope,
            layers: layers::compare((&before, held_layers(&before)), (&after, held_layers(&after))),
            ranges: ranges::compare(&before, &after),
            times: times::compare(&before, &after),
            before,
            after,
        }
    }
}

impl Difference {
    /// Changes of the displayed lines.
    pub fn shown_lines(&self) -> &[LineChange] {
        &self.lines[self.scope]
    }
}

fn held_lines(side: &Side, scope: Scope) -> LineFigures {
    side.held.lines[scope].iter().map(|held| (held.line.clone(), held.bytes)).collect()
}

fn held_layers(side: &Side) -> Vec<(LayerName, u64)> {
    side.held.layers.iter().map(|layer| (layer.layer.clone(), layer.bytes)).collect()
}
