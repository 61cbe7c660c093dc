//! The steps: what each took and left behind, and what grew between two of them.

use std::cmp::Ordering;

use crossterm::event::KeyCode;
use memlab_trace::{SeekTarget, StepView};

use super::table::{Column, TableState, bytes_text};
use super::{App, Moment, Screen};
use crate::filter::{Field, Row};
use crate::format::{self, Units};
use crate::query::{Comparison, ComparisonQuery};

/// A row of the table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepItem {
    /// The step.
    pub step: StepView,
    /// How much more is allocated at its end than at the end of the one before; `None`: it is the first.
    pub growth: Option<i64>,
    /// How long it took, in nanoseconds; `None`: it is the first.
    pub duration: Option<u64>,
    /// Whether it is marked.
    pub is_marked: bool,
    /// Whether the device's peak lies in it.
    pub has_peak: bool,
    /// Whether the moment shown lies in it.
    pub is_shown: bool,
    /// Out-of-memories in it.
    pub oom_count: usize,
    name: String,
}

impl Row for StepItem {
    fn texts(&self) -> Vec<&str> {
        vec![&self.name]
    }

    fn bytes(&self) -> u64 {
        self.step.peak_allocated_bytes
    }

    fn field(&self, _: Field) -> Vec<&str> {
        Vec::new()
    }
}

/// The columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepColumn {
    /// Its number.
    Step,
    /// When it ended.
    End,
    /// How long it took.
    Duration,
    /// The most allocated during it.
    Peak,
    /// Allocated at its end.
    Kept,
    /// How much more than at the end of the step before.
    Growth,
    /// A bar of the peak.
    Name,
}

impl Column for StepColumn {
    type Row = StepItem;

    const ALL: &'static [Self] =
        &[Self::Step, Self::End, Self::Duration, Self::Peak, Self::Kept, Self::Growth, Self::Name];

    fn title(self) -> &'static str {
        match self {
            Self::Step => "step",
            Self::End => "ended at",
            Self::Duration => "took",
            Self::Peak => "peak",
            Self::Kept => "kept",
            Self::Growth => "growth",
            Self::Name => "",
        }
    }

    fn columns(self) -> u16 {
        match self {
            Self::Name => 0,
            Self::Step | Self::Duration => 8,
            Self::End => 9,
            _ => 10,
        }
    }

    fn shown_from(self) -> u16 {
        match self {
            Self::Duration => 58,
            Self::End => 72,
            _ => 0,
        }
    }

    fn figure(self, row: &StepItem) -> Option<f64> {
        Some(match self {
            Self::Step | Self::Name => row.step.index as f64,
            Self::End => row.step.end_time as f64,
            Self::Duration => row.duration.unwrap_or(0) as f64,
            Self::Peak => row.step.peak_allocated_bytes as f64,
            Self::Kept => row.step.allocated_bytes_at_end as f64,
            Self::Growth => row.growth.unwrap_or(0) as f64,
        })
    }

    fn compare_names(a: &StepItem, b: &StepItem) -> Ordering {
        a.step.index.cmp(&b.step.index)
    }

    fn text(self, row: &StepItem, units: Units) -> String {
        match self {
            Self::Step if row.step.steps > 1 => {
                format!("{}–{}", row.step.index.saturating_add(1).saturating_sub(row.step.steps), row.step.index)
            }
            Self::Step => row.step.index.to_string(),
            Self::End => format::duration(row.step.end_time),
            Self::Duration => row.duration.map(format::duration).unwrap_or_else(|| "–".to_owned()),
            Self::Peak => bytes_text(row.step.peak_allocated_bytes, units),
            Self::Kept => bytes_text(row.step.allocated_bytes_at_end, units),
            Self::Growth => row.growth.map_or_else(|| "–".to_owned(), |growth| format::change(growth, units)),
            Self::Name => String::new(),
        }
    }
}

/// What the first step is compared with.
const START: SeekTarget = SeekTarget::Event(0);

/// How the steps are shown.
#[derive(Clone, Debug)]
pub struct StepsState {
    /// Order and cursor.
    pub table: TableState<StepColumn>,
    /// The ends of the marked steps, at most two.
    marks: Vec<u64>,
    /// The row of the cursor as it was last drawn, and the end of the step there.
    held: Option<(usize, u64)>,
}

impl Default for StepsState {
    fn default() -> Self {
        // By number, the largest first: the latest step is on top.
        Self { table: TableState::new(StepColumn::Step), marks: Vec::new(), held: None }
    }
}

impl App {
    /// The rows of the table, sorted.
    pub fn step_items(&self) -> Vec<StepItem> {
        let (Some(process), Some(device)) = (self.process(), self.device()) else { return Vec::new() };
        let steps = &device.steps;
        let totals = &device.totals;
        let peak = if totals.peak_allocated_bytes > 0 { step_at(steps, totals.peak_time) } else { None };
        let shown = if self.moment == Moment::Then { self.cursor_time() } else { None };
        let shown = shown.and_then(|time| step_at(steps, time));
        let ooms = process.ooms.iter().filter(|oom| oom.device == totals.index);
        let ooms: Vec<_> = ooms.filter_map(|oom| step_at(steps, oom.time)).collect();
        let item = |(index, step): (usize, &StepView)| {
            let before = index.checked_sub(1).map(|before| &steps[before]);
            StepItem {
                step: *step,
                growth: before.map(|before| {
                    format::signed_difference(step.allocated_bytes_at_end, before.allocated_bytes_at_end)
                }),
                duration: before.map(|before| step.end_time.saturating_sub(before.end_time)),
                is_marked: self.steps.marks.contains(&step.end_time),
                has_peak: peak == Some(index),
                is_shown: shown == Some(index),
                oom_count: ooms.iter().filter(|oom| **oom == index).count(),
                name: format!("step {}", step.index),
            }
        };
        let mut items: Vec<_> = steps.iter().enumerate().map(item).filter(|item| self.filter.passes(item)).collect();
        items.sort_by(|a, b| self.steps.table.compare(a, b, self.moment));
        items
    }

    pub(super) fn on_steps_key(&mut self, key: KeyCode) {
        match key {
            KeyCode::Char('m') => self.mark_step(),
            KeyCode::Char('M') => self.steps.marks.clear(),
            _ => {}
        }
    }

    /// Marks the step under the cursor, or takes its mark away. Of three marks the oldest goes.
    fn mark_step(&mut self) {
        let Some(end) = self.selected_step().map(|step| step.end_time) else { return };
        let marks = &mut self.steps.marks;
        match marks.iter().position(|mark| *mark == end) {
            Some(mark) => {
                marks.remove(mark);
            }
            None => {
                marks.push(end);
                if marks.len() > 2 {
                    marks.remove(0);
                }
            }
        }
    }

    /// Where the cursor is among these rows. While steps come in it stays on its step; on top it stays on top.
    fn step_row(&self, items: &[StepItem]) -> usize {
        let selected = self.steps.table.selected;
        let held = self.steps.held.filter(|(row, _)| *row == selected && selected > 0);
        let row = held.and_then(|(_, end)| items.iter().position(|item| item.step.end_time == end));
        row.unwrap_or_else(|| selected.min(items.len().saturating_sub(1)))
    }

    /// The rows, with the cursor of the table on the one it belongs to.
    pub fn settled_step_items(&mut self) -> Vec<StepItem> {
        let items = self.step_items();
        let row = self.step_row(&items);
        let table = &mut self.steps.table;
        // The row stays where it is on the screen.
        table.offset = (table.offset + row).saturating_sub(table.selected);
        table.selected = row;
        self.steps.held = items.get(row).map(|item| (row, item.step.end_time));
        items
    }

    /// The step under the cursor. Asked for again and again, also of long runs: where it is known without making all rows
    /// they are not made.
    fn selected_step(&self) -> Option<StepView> {
        let (steps, table) = (&self.device()?.steps, &self.steps.table);
        if let Some((row, end)) = self.steps.held
            && row == table.selected
            && row > 0
        {
            let index = steps.partition_point(|step| step.end_time < end);
            return steps.get(index).filter(|step| step.end_time == end).copied();
        }
        if table.selected == 0 && table.sort == StepColumn::Step && !table.ascending && self.filter.is_empty() {
            return steps.last().copied();
        }
        let items = self.step_items();
        let row = self.step_row(&items);
        items.get(row).map(|item| item.step)
    }

    /// Puts the cursor in time at the end of the step under the cursor of the table.
    pub(super) fn go_to_selected_step(&mut self) {
        if let Some(step) = self.selected_step() {
            self.go_to_event(step.end_event, step.end_time);
        }
    }

    /// The two steps whose ends are compared: those marked, else the one under the cursor and the one before it; the
    /// first is compared with the start of the trace.
    pub fn compared_steps(&self) -> Option<(Option<StepView>, StepView)> {
        let steps = &self.device()?.steps;
        let at = |end: u64| steps.iter().position(|step| step.end_time == end);
        if let Some((before, after)) = self.marked_steps() {
            return Some((Some(before), after));
        }
        let after = at(self.selected_step()?.end_time)?;
        Some((after.checked_sub(1).map(|before| steps[before]), steps[after]))
    }

    /// The two marked steps, the earlier one first; `None`: not two are marked on this device.
    pub fn marked_steps(&self) -> Option<(StepView, StepView)> {
        let [one, other] = *self.steps.marks else { return None };
        let steps = &self.device()?.steps;
        let of = |end: u64| steps.iter().find(|step| step.end_time == end).copied();
        Some((of(one.min(other))?, of(one.max(other))?))
    }

    pub(super) fn wanted_comparison(&self) -> Option<ComparisonQuery> {
        if self.screen != Screen::Steps {
            return None;
        }
        let (before, after) = self.compared_steps()?;
        Some(ComparisonQuery {
            trace: self.process()?.path.clone(),
            device: self.device()?.totals.index,
            before: before.map_or(START, |before| end_of(&before)),
            after: end_of(&after),
        })
    }

    /// The comparison shown, if it has come.
    pub fn comparison(&self) -> Option<&Comparison> {
        let comparison = self.shown.comparison.as_deref()?;
        (Some(&comparison.of) == self.wanted_comparison().as_ref()).then_some(comparison)
    }

    /// The comparison made last, if it is of the device shown, and the steps it is of. While another one is looked up this
    /// is not yet the one wanted.
    pub fn latest_comparison(&self) -> Option<(&Comparison, Option<StepView>, StepView)> {
        let comparison = self.shown.comparison.as_deref()?;
        let of = &comparison.of;
        let device = self.device()?;
        if of.trace != self.process()?.path || of.device != device.totals.index {
            return None;
        }
        let step = |at: SeekTarget| device.steps.iter().find(|step| end_of(step) == at).copied();
        let before = if of.before == START { None } else { Some(step(of.before)?) };
        Some((comparison, before, step(of.after)?))
    }

    /// Whether a comparison is wanted that has not come.
    pub fn awaits_comparison(&self) -> bool {
        let wanted = self.wanted_comparison();
        wanted.is_some() && self.shown.comparison.as_deref().map(|comparison| &comparison.of) != wanted.as_ref()
    }
}

/// The moment of a step's end.
fn end_of(step: &StepView) -> SeekTarget {
    SeekTarget::event(step.end_event, step.end_time)
}

/// The step in which a time lies, if that has ended.
pub fn step_at(steps: &[StepView], time: u64) -> Option<usize> {
    let index = steps.partition_point(|step| step.end_time < time);
    (index < steps.len()).then_some(index)
}
