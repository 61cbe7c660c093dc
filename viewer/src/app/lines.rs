//! The lines: a table of what each holds, which opens to who called it, or the call tree from the outermost call down.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use memlab_trace::{AllocationTotals, CallTree, Line, LineView};

use super::table::{Column, TableState, bytes_text};
use super::{App, Moment};
use crate::filter::{Field, Row};
use crate::format::{self, Units};
use crate::snapshot::{Calls, LineRow, Related};
use crate::text::{NO_LINE, layer_name};

/// A place in the table: the line, then the callers it was opened along (in the tree: the calls down to it).
pub type LineKey = Vec<Option<Arc<Line>>>;

/// Rows below that depth do not open: programs are not nested so, only traces that mean harm.
const DEEPEST: usize = 256;

/// A row of the table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LineItem {
    /// Where it stands.
    pub key: LineKey,
    /// How deep it is indented.
    pub depth: u16,
    /// Whether it is open; `None`: there is nothing below it.
    pub is_open: Option<bool>,
    /// Its figures. Below the first level only what the call tree tells.
    pub figures: LineRow,
    /// The words that filters look at: file and line.
    place: String,
    /// What it has to do with, where a filter asks.
    related: Option<Arc<Related>>,
    /// Whether figures are inclusive.
    inclusive: bool,
    /// Whether it is a line with all it holds, not one call of it.
    is_whole: bool,
}

impl LineItem {
    /// The line; `None`: there is no Python frame of the user's.
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

impl Row for LineItem {
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

/// The columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineColumn {
    /// Live at the moment shown.
    Now,
    /// Live at the device's peak.
    AtPeak,
    /// The most this line ever held.
    Most,
    /// How much more it holds after each step.
    Growth,
    /// Blocks live.
    Blocks,
    /// The part of what is live at the peak that was allocated in backward.
    Backward,
    /// Blocks handed out a second.
    Rate,
    /// Blocks handed out over the run.
    Allocations,
    /// Bytes handed out over the run.
    Total,
    /// File and line.
    Place,
}

impl Column for LineColumn {
    type Row = LineItem;

    const ALL: &'static [Self] = &[
        Self::Now,
        Self::AtPeak,
        Self::Most,
        Self::Growth,
        Self::Blocks,
        Self::Backward,
        Self::Rate,
        Self::Allocations,
        Self::Total,
        Self::Place,
    ];

    fn title(self) -> &'static str {
        match self {
            Self::Now => "now",
            Self::AtPeak => "at peak",
            Self::Most => "its most",
            Self::Growth => "+ a step",
            Self::Blocks => "blocks",
            Self::Backward => "backward",
            Self::Rate => "allocs/s",
            Self::Allocations => "allocs",
            Self::Total => "in total",
            Self::Place => "line",
        }
    }

    fn columns(self) -> u16 {
        match self {
            Self::Blocks | Self::Allocations => 7,
            Self::Rate => 8,
            Self::Place => 0,
            _ => 10,
        }
    }

    fn shown_from(self) -> u16 {
        match self {
            Self::Now | Self::AtPeak | Self::Place => 0,
            Self::Growth => 70,
            Self::Most => 90,
            Self::Rate => 104,
            Self::Blocks => 116,
            Self::Backward => 126,
            Self::Allocations | Self::Total => 150,
        }
    }

    fn figure(self, row: &LineItem) -> Option<f64> {
        let own = &row.figures.own;
        Some(match self {
            Self::Now => row.live_bytes() as f64,
            Self::AtPeak => row.live_bytes_at_peak() as f64,
            Self::Most => own.peak_live_bytes as f64,
            Self::Growth => row.figures.growth_per_step.unwrap_or(0.0),
            Self::Blocks => row.held().live_blocks as f64,
            Self::Backward => own.backward_bytes_at_peak as f64,
            Self::Rate => row.figures.allocations_per_second,
            Self::Allocations => row.held().allocations as f64,
            Self::Total => row.held().allocated_bytes as f64,
            Self::Place => return None,
        })
    }

    fn compare_names(a: &LineItem, b: &LineItem) -> Ordering {
        a.line().cmp(&b.line())
    }

    fn text(self, row: &LineItem, units: Units) -> String {
        let (own, held) = (&row.figures.own, row.held());
        let count = |count: u64| if count == 0 { "–".to_owned() } else { format::count(count) };
        match self {
            Self::Now => bytes_text(held.live_bytes, units),
            Self::AtPeak => bytes_text(held.live_bytes_at_peak, units),
            Self::Blocks => count(held.live_blocks),
            Self::Allocations => count(held.allocations),
            Self::Total => bytes_text(held.allocated_bytes, units),
            Self::Growth => row
                .figures
                .growth_per_step
                .map_or_else(String::new, |growth| format::change(growth.round() as i64, units)),
            // What only whole lines have is left blank for their calls.
            _ if !row.is_whole => String::new(),
            Self::Most => bytes_text(own.peak_live_bytes, units),
            Self::Backward => bytes_text(own.backward_bytes_at_peak, units),
            Self::Rate => format::rate(row.figures.allocations_per_second),
            Self::Place => String::new(),
        }
    }

    fn of_moment(moment: Moment) -> Option<Self> {
        Some(match moment {
            Moment::Now | Moment::Then => Self::Now,
            Moment::Peak => Self::AtPeak,
        })
    }
}

/// How the lines are shown.
#[derive(Clone, Debug)]
pub struct LinesState {
    /// Order and cursor.
    pub table: TableState<LineColumn>,
    /// Whether the call tree is shown instead of the table.
    pub is_tree: bool,
    open: HashSet<LineKey>,
}

impl Default for LinesState {
    fn default() -> Self {
        Self { table: TableState::new(LineColumn::Now), is_tree: false, open: HashSet::new() }
    }
}

impl LinesState {
    pub(super) fn turn_tree(&mut self) {
        self.is_tree = !self.is_tree;
        self.open.clear();
        self.table.selected = 0;
    }

    pub(super) fn follow(&mut self, old: Moment, new: Moment) {
        self.table.follow(old, new);
    }
}

impl App {
    /// The rows of the table: the lines that pass the filter, sorted, and what was opened below them.
    pub fn line_items(&self) -> Vec<LineItem> {
        let Some(device) = self.device() else { return Vec::new() };
        if let (true, Some(calls)) = (self.lines.is_tree, &device.calls) {
            return self.tree_items(calls);
        }
        let mut whole: Vec<LineItem> = device
            .lines
            .iter()
            .map(|row| self.item(vec![row.own.line.clone()], row.clone()))
            .filter(|item| self.filter.passes(item))
            .collect();
        whole.sort_by(|a, b| self.lines.table.compare(a, b, self.moment));
        let Some(calls) = &device.calls else { return whole };
        let mut items = Vec::with_capacity(whole.len());
        for mut item in whole {
            let nodes: Vec<(u32, u32)> = match item.line() {
                Some(line) => calls.of(line).iter().map(|node| (*node, *node)).collect(),
                None => Vec::new(),
            };
            let has_callers = nodes.iter().any(|(_, node)| calls.tree.calls[*node as usize].parent.is_some());
            let is_open = self.lines.open.contains(&item.key);
            item.is_open = has_callers.then_some(is_open);
            let (key, growth) = (item.key.clone(), item.figures.growth_per_step);
            items.push(item);
            if is_open {
                let counted = nodes.into_iter().filter(|(node, _)| !self.inclusive || calls.is_outermost(*node));
                self.push_callers(&calls.tree, &counted.collect::<Vec<_>>(), (&key, growth), &mut items);
            }
        }
        items
    }

    /// Puts who called below a row. `nodes`: the calls that hold the bytes, and how far each was climbed; `growth`: that of
    /// the row.
    fn push_callers(
        &self,
        calls: &CallTree,
        nodes: &[(u32, u32)],
        (key, growth): (&LineKey, Option<f64>),
        items: &mut Vec<LineItem>,
    ) {
        /// What came through one caller, and the calls by which.
        type Through = (AllocationTotals, Vec<(u32, u32)>);
        let mut callers: HashMap<&Arc<Line>, Through> = HashMap::new();
        for (holder, node) in nodes {
            let Some(parent) = calls.calls[*node as usize].parent else { continue };
            let Some(line) = &calls.calls[parent as usize].line else { continue };
            let (held, below) = callers.entry(line).or_default();
            let holder_call = &calls.calls[*holder as usize];
            held.add(if self.inclusive { &holder_call.inclusive } else { &holder_call.own });
            below.push((*holder, parent));
        }
        callers.retain(|_, (held, _)| *held != AllocationTotals::default());
        // Of several callers it is not known which one makes the line grow.
        let growth = growth.filter(|growth| *growth == 0.0 || callers.len() == 1);
        let mut rows: Vec<_> = callers
            .into_iter()
            .map(|(line, (held, below))| {
                let mut key = key.clone();
                key.push(Some(line.clone()));
                (self.item(key, figures(&held, &held, growth)), below)
            })
            .collect();
        rows.sort_by(|(a, _), (b, _)| self.lines.table.compare(a, b, self.moment));
        for (mut item, below) in rows {
            let is_open = self.lines.open.contains(&item.key);
            let has_callers =
                item.key.len() < DEEPEST && below.iter().any(|(_, node)| calls.calls[*node as usize].parent.is_some());
            item.is_open = has_callers.then_some(is_open);
            let key = item.key.clone();
            items.push(item);
            if is_open {
                self.push_callers(calls, &below, (&key, growth), items);
            }
        }
    }

    /// The rows of the call tree. With a filter, the calls that pass it and those around them.
    fn tree_items(&self, calls: &Calls) -> Vec<LineItem> {
        let passes = (!self.filter.is_empty()).then(|| self.passing(calls));
        let mut items = Vec::new();
        let mut to_do = self.call_items(&calls.tree.roots, calls, &LineKey::new(), passes.as_deref());
        while let Some((index, mut item)) = to_do.pop() {
            let children = &calls.tree.calls[index as usize].children;
            let is_open = self.lines.open.contains(&item.key) != self.starts_open(&item);
            let opens = !children.is_empty() && item.key.len() < DEEPEST;
            item.is_open = opens.then_some(is_open);
            if opens && is_open {
                to_do.extend(self.call_items(children, calls, &item.key, passes.as_deref()));
            }
            items.push(item);
        }
        items
    }

    /// Whether a call is open until it is closed: the outermost ones, and what a filter found.
    fn starts_open(&self, item: &LineItem) -> bool {
        self.lines.is_tree && (item.depth < 2 || !self.filter.is_empty())
    }

    /// Which calls pass the filter, or have some below them that do.
    fn passing(&self, calls: &Calls) -> Vec<bool> {
        let calls_in_order = &calls.tree.calls;
        let mut passes = vec![false; calls_in_order.len()];
        for (index, call) in calls_in_order.iter().enumerate().rev() {
            passes[index] |= self.filter.passes(&self.call_item(index as u32, calls, LineKey::new()));
            if let (true, Some(parent)) = (passes[index], call.parent) {
                passes[parent as usize] = true;
            }
        }
        passes
    }

    /// Calls made from the same place, sorted, the first one last.
    fn call_items(
        &self,
        made: &[u32],
        calls: &Calls,
        around: &LineKey,
        passes: Option<&[bool]>,
    ) -> Vec<(u32, LineItem)> {
        let shown = made.iter().filter(|index| passes.is_none_or(|passes| passes[**index as usize]));
        let mut items: Vec<(u32, LineItem)> =
            shown.map(|index| (*index, self.call_item(*index, calls, around.clone()))).collect();
        items.sort_by(|(_, a), (_, b)| self.lines.table.compare(b, a, self.moment));
        items
    }

    fn call_item(&self, index: u32, calls: &Calls, mut key: LineKey) -> LineItem {
        let call = &calls.tree.calls[index as usize];
        key.push(call.line.clone());
        self.item(key, figures(&call.own, &call.inclusive, calls.growth(index)))
    }

    fn item(&self, key: LineKey, figures: LineRow) -> LineItem {
        let place = match key.last().and_then(Option::as_ref) {
            _ if self.filter.is_empty() => String::new(), // Nobody looks at it.
            Some(line) => format!("{}:{}", line.file, line.line.unwrap_or(0)),
            None => NO_LINE.to_owned(),
        };
        let relations = self.device().and_then(|device| device.relations.as_ref());
        let related = match self.filter.asks_for_relations() {
            true => relations.and_then(|relations| relations.of_line(key.last().and_then(Option::as_ref))),
            false => None,
        };
        let inclusive = self.inclusive || self.lines.is_tree;
        let is_whole = key.len() == 1 && !self.lines.is_tree;
        LineItem {
            depth: (key.len() - 1).min(100) as u16,
            key,
            is_open: None,
            figures,
            place,
            related,
            inclusive,
            is_whole,
        }
    }

    /// Opens the row under the cursor, or closes it or the one it is in.
    pub(super) fn open_line(&mut self, open: bool) {
        let items = self.line_items();
        let Some(item) = items.get(self.lines.table.selected) else { return };
        let starts_open = self.starts_open(item);
        match item.is_open {
            Some(is_open) if is_open != open => {
                if open == starts_open {
                    self.lines.open.remove(&item.key);
                } else {
                    self.lines.open.insert(item.key.clone());
                }
            }
            // Closing what is closed goes to the row around it.
            _ if !open && item.depth > 0 => {
                let around = &item.key[..item.key.len() - 1];
                if let Some(row) = items.iter().position(|other| other.key == around) {
                    self.lines.table.selected = row;
                }
            }
            _ => {}
        }
    }

    /// Shows the source around the line under the cursor.
    pub(super) fn show_source(&mut self) {
        let items = self.line_items();
        match items.get(self.lines.table.selected).and_then(LineItem::line) {
            Some(line) => self.open_source(line.clone()),
            None => self.notice = Some("there is no Python line to show".to_owned()),
        }
    }
}

fn figures(own: &AllocationTotals, inclusive: &AllocationTotals, growth_per_step: Option<f64>) -> LineRow {
    LineRow {
        own: LineView {
            allocations: own.allocations,
            allocated_bytes: own.allocated_bytes,
            live_bytes: own.live_bytes,
            live_blocks: own.live_blocks,
            live_bytes_at_peak: own.live_bytes_at_peak,
            ..LineView::default()
        },
        inclusive: Some(*inclusive),
        growth_per_step,
        ..LineRow::default()
    }
}
