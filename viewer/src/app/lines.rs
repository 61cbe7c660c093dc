//! The lines: a table of what each holds, which opens to who called it, or the call tree from the outermost call down.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use memlab_trace::{CallTree, Held, Line, LineView};

use super::table::{Column, TableState, bytes_text};
use super::{App, Moment, NO_LINE, Overlay, Request};
use crate::filter::{Field, Row};
use crate::format::{self, Units};
use crate::snapshot::LineRow;
use crate::source::{self, Source};
use crossterm::event::KeyCode;

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
    /// Whether figures of live and peak bytes are inclusive.
    inclusive: bool,
}

impl LineItem {
    /// The line; `None`: there is no Python frame of the user's.
    pub fn line(&self) -> Option<&Arc<Line>> {
        self.key.last().and_then(Option::as_ref)
    }

    /// Live at the moment shown, as the table shows it.
    pub fn live_bytes(&self) -> u64 {
        match (&self.figures.inclusive, self.inclusive) {
            (Some(held), true) => held.live_bytes,
            _ => self.figures.own.live_bytes,
        }
    }

    /// Live at the peak, as the table shows it.
    pub fn live_bytes_at_peak(&self) -> u64 {
        match (&self.figures.inclusive, self.inclusive) {
            (Some(held), true) => held.live_bytes_at_peak,
            _ => self.figures.own.live_bytes_at_peak,
        }
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
            Self::Growth => row.figures.growth_per_step,
            Self::Blocks => own.live_blocks as f64,
            Self::Backward => own.backward_bytes_at_peak as f64,
            Self::Rate => row.figures.allocations_per_second,
            Self::Allocations => own.allocations as f64,
            Self::Total => own.allocated_bytes as f64,
            Self::Place => return None,
        })
    }

    fn compare_names(a: &LineItem, b: &LineItem) -> Ordering {
        a.line().cmp(&b.line())
    }

    fn text(self, row: &LineItem, units: Units) -> String {
        let own = &row.figures.own;
        // What only whole lines have is left blank below them.
        let is_whole = row.depth == 0;
        match self {
            Self::Now => bytes_text(row.live_bytes(), units),
            Self::AtPeak => bytes_text(row.live_bytes_at_peak(), units),
            Self::Allocations if own.allocations == 0 => "–".to_owned(),
            Self::Allocations => format::count(own.allocations),
            Self::Total => bytes_text(own.allocated_bytes, units),
            _ if !is_whole => String::new(),
            Self::Most => bytes_text(own.peak_live_bytes, units),
            Self::Growth => match row.figures.growth_per_step.round() {
                0.0 => "–".to_owned(),
                growth if growth < 0.0 => format!("-{}", format::bytes(-growth as u64, units)),
                growth => format!("+{}", format::bytes(growth as u64, units)),
            },
            Self::Blocks if own.live_blocks == 0 => "–".to_owned(),
            Self::Blocks => format::count(own.live_blocks),
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

/// The source around a line, over the screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceView {
    /// The line it was opened at.
    pub line: Arc<Line>,
    /// The first line shown, from 1; `None`: so that the line is in the middle.
    pub top: Option<u32>,
    /// The file's lines.
    pub source: Source,
}

impl SourceView {
    /// Reads the file that the line is of.
    pub fn open(line: Arc<Line>) -> Self {
        Self { source: source::read(&line.file), line, top: None }
    }
}

impl App {
    /// The rows of the table: the lines that pass the filter, sorted, and what was opened below them.
    pub fn line_items(&self) -> Vec<LineItem> {
        let Some(device) = self.device() else { return Vec::new() };
        if let (true, Some(calls)) = (self.lines.is_tree, &device.calls) {
            return self.tree_items(&calls.tree);
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
            let key = item.key.clone();
            items.push(item);
            if is_open {
                let counted = nodes.into_iter().filter(|(node, _)| !self.inclusive || calls.is_outermost(*node));
                self.push_callers(&calls.tree, &counted.collect::<Vec<_>>(), &key, &mut items);
            }
        }
        items
    }

    /// Puts who called below a row. `nodes`: the calls that hold the bytes, and how far each was climbed.
    fn push_callers(&self, calls: &CallTree, nodes: &[(u32, u32)], key: &LineKey, items: &mut Vec<LineItem>) {
        /// What came through one caller, and the calls by which.
        type Through = (Held, Vec<(u32, u32)>);
        let mut callers: HashMap<&Arc<Line>, Through> = HashMap::new();
        for (holder, node) in nodes {
            let Some(parent) = calls.calls[*node as usize].parent else { continue };
            let Some(line) = &calls.calls[parent as usize].line else { continue };
            let (held, below) = callers.entry(line).or_default();
            let holder_call = &calls.calls[*holder as usize];
            held.add(if self.inclusive { &holder_call.inclusive } else { &holder_call.own });
            below.push((*holder, parent));
        }
        let mut rows: Vec<_> = callers
            .into_iter()
            .filter(|(_, (held, _))| *held != Held::default())
            .map(|(line, (held, below))| {
                let mut key = key.clone();
                key.push(Some(line.clone()));
                (self.item(key, figures(&held, &held)), below)
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
                self.push_callers(calls, &below, &key, items);
            }
        }
    }

    /// The rows of the call tree. With a filter, the calls that pass it and those around them.
    fn tree_items(&self, calls: &CallTree) -> Vec<LineItem> {
        let passes = (!self.filter.is_empty()).then(|| self.passing(calls));
        let mut items = Vec::new();
        let mut to_do = self.call_items(&calls.roots, calls, &LineKey::new(), passes.as_deref());
        while let Some((index, mut item)) = to_do.pop() {
            let children = &calls.calls[index as usize].children;
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
    fn passing(&self, calls: &CallTree) -> Vec<bool> {
        let mut passes = vec![false; calls.calls.len()];
        for (index, call) in calls.calls.iter().enumerate().rev() {
            passes[index] |=
                self.filter.passes(&self.item(vec![call.line.clone()], figures(&call.own, &call.inclusive)));
            if let (true, Some(parent)) = (passes[index], call.parent) {
                passes[parent as usize] = true;
            }
        }
        passes
    }

    /// Calls made from the same place, sorted, the first one last.
    fn call_items(
        &self,
        calls: &[u32],
        tree: &CallTree,
        around: &LineKey,
        passes: Option<&[bool]>,
    ) -> Vec<(u32, LineItem)> {
        let shown = calls.iter().filter(|index| passes.is_none_or(|passes| passes[**index as usize]));
        let mut items: Vec<(u32, LineItem)> = shown
            .map(|index| {
                let call = &tree.calls[*index as usize];
                let mut key = around.clone();
                key.push(call.line.clone());
                (*index, self.item(key, figures(&call.own, &call.inclusive)))
            })
            .collect();
        items.sort_by(|(_, a), (_, b)| self.lines.table.compare(b, a, self.moment));
        items
    }

    fn item(&self, key: LineKey, figures: LineRow) -> LineItem {
        let place = match key.last().and_then(Option::as_ref) {
            _ if self.filter.is_empty() => String::new(), // Nobody looks at it.
            Some(line) => format!("{}:{}", line.file, line.line.unwrap_or(0)),
            None => NO_LINE.to_owned(),
        };
        let inclusive = self.inclusive || self.lines.is_tree;
        LineItem { depth: (key.len() - 1).min(100) as u16, key, is_open: None, figures, place, inclusive }
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
            Some(line) => self.overlay = Some(Overlay::Source(SourceView::open(line.clone()))),
            None => self.notice = Some("there is no Python line to show".to_owned()),
        }
    }

    pub(super) fn on_source_key(&mut self, key: KeyCode) -> Option<Request> {
        let Some(Overlay::Source(source)) = &mut self.overlay else { return None };
        let top = source.top.unwrap_or_else(|| source.line.line.unwrap_or(1).saturating_sub(10).max(1));
        let top = match key {
            KeyCode::Down | KeyCode::Char('j') => top.saturating_add(1),
            KeyCode::Up | KeyCode::Char('k') => top.saturating_sub(1),
            KeyCode::PageDown => top.saturating_add(20),
            KeyCode::PageUp => top.saturating_sub(20),
            _ => {
                self.overlay = None;
                return None;
            }
        };
        source.top = Some(top.max(1));
        None
    }
}

fn figures(own: &Held, inclusive: &Held) -> LineRow {
    LineRow {
        own: LineView {
            allocations: own.allocations,
            allocated_bytes: own.allocated_bytes,
            live_bytes: own.live_bytes,
            live_bytes_at_peak: own.live_bytes_at_peak,
            ..LineView::default()
        },
        inclusive: Some(*inclusive),
        ..LineRow::default()
    }
}
