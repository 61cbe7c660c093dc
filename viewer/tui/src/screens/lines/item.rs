//! A row of the lines.

use std::sync::Arc;

use memlab_trace::{AllocationTotals, Line};

use memlab_base::filter::{Field, Filterable};
use memlab_base::text::{NO_LINE, layer_name};
use memlab_follow::snapshot::{GpuTime, LineFigures, Related};

/// A place in the table: the line, then the callers it was opened along (in the tree: the calls down to it).
pub type LineKey = Vec<Option<Arc<Line>>>;

/// A row of the table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LineItem {
    /// Its place in the table or tree.
    pub key: LineKey,
    /// How deep it is indented.
    pub depth: u16,
    /// Whether it is open; `None`: there is nothing below it.
    pub is_open: Option<bool>,
    /// Its figures. Below the first level only those of the call tree.
    pub figures: LineFigures,
    /// What it had the GPU do itself, if that was recorded; of calls of it that is not known.
    pub time: Option<GpuTime>,
    /// The words that filters look at: file and line.
    pub(super) place: String,
    /// What it has to do with, where a filter asks.
    pub(super) related: Option<Arc<Related>>,
    /// Whether figures are inclusive.
    pub(super) inclusive: bool,
    /// Whether it is a line with all it holds, not one call of it.
    pub(super) is_whole: bool,
}

impl LineItem {
    /// The line; `None`: there is no Python frame of the user's code.
    pub fn line(&self) -> Option<&Arc<Line>> {
        self.key.last().and_then(Option::as_ref)
    }

    fn related(&self) -> impl Iterator<Item = &Related> {
        self.related.as_deref().into_iter()
    }

    /// What it holds, as the table shows it: itself, or with all it called.
    pub fn held(&self) -> AllocationTotals {
        match (self.figures.inclusive, self.inclusive) {
            (Some(held), true) => held,
            _ => AllocationTotals::from(&self.figures.own),
        }
    }

    /// Live at the moment shown, as the table shows it.
    pub fn live_bytes(&self) -> u64 {
        self.held().live_bytes
    }

    /// Live at the peak, as the table shows it.
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
