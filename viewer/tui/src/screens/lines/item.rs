//! A row of the lines.

use std::sync::Arc;

use memlab_trace::{AllocationTotals, Line};

use memlab_base::filter::{Field, Filterable};
use memlab_base::text::{NO_LINE, layer_name};
use memlab_follow::snapshot::{GpuTime, LineFigures, Related};

/// Place in the table: the line, then the callers along which it was opened (in the tree: the calls down to it).
pub type LineKey = Vec<Option<Arc<Line>>>;

/// A row of the table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LineItem {
    /// Place in the table or tree.
    pub key: LineKey,
    /// Level of indentation.
    pub depth: u16,
    /// True if the row is open; `None`: the row has no children.
    pub is_open: Option<bool>,
    /// Figures. Below the first level only those of the call tree.
    pub figures: LineFigures,
    /// GPU time of the line alone, if recorded; unknown for single calls of it.
    pub time: Option<GpuTime>,
    /// Text for filters: file and line.
    pub(super) place: String,
    /// Related lines, layers and categories, if a filter needs them.
    pub(super) related: Option<Arc<Related>>,
    /// True if figures are inclusive.
    pub(super) inclusive: bool,
    /// True for a line with all its memory, false for one call of it.
    pub(super) is_whole: bool,
}

impl LineItem {
    /// The line; `None`: no Python frame of the user's code.
    pub fn line(&self) -> Option<&Arc<Line>> {
        self.key.last().and_then(Option::as_ref)
    }

    fn related(&self) -> impl Iterator<Item = &Related> {
        self.related.as_deref().into_iter()
    }

    /// Memory as the table shows it: of the line alone, or with its calls.
    pub fn held(&self) -> AllocationTotals {
        match (self.figures.inclusive, self.inclusive) {
            (Some(held), true) => held,
            _ => AllocationTotals::from(&self.figures.own),
        }
    }

    /// Live bytes at the displayed moment, as the table shows them.
    pub fn live_bytes(&self) -> u64 {
        self.held().live_bytes
    }

    /// Live bytes at the peak, as the table shows them.
    pub fn live_bytes_at_peak(&self) -> u64 {
        self.held().live_bytes_at_peak
    }
}

impl Filterable for LineItem {
    fn texts(&self) -> Vec<&str> {
        vec![&self.place, self.line().map_or(NO_LINE, |line| &line.function)]
    }

    fn bytes(&self) -> u64 {
        self.live_bytes().max(self.live_bytes_at_peak())
    }

    fn field(&self, field: Field) -> Vec<&str> {
        match field {
            Field::Line => vec![&self.place],
            Field::Function => self.line().map(|line| &*line.function).into_iter().collect(),
            Field::Layer => {
                self.related().flat_map(|related| &related.layers).map(|name| layer_name(name.as_deref())).collect()
            }
            Field::Class => self.related().flat_map(|related| &related.classes).map(|class| &**class).collect(),
            Field::Category => {
                self.related().flat_map(|related| &related.categories).map(|category| category.as_str()).collect()
            }
            _ => Vec::new(),
        }
    }
}
