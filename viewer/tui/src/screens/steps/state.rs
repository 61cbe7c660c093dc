//! State and keys of the steps.

use crossterm::event::KeyCode;
use memlab_trace::StepView;

use super::columns::StepColumn;
use super::item::StepItem;
use crate::context::{Context, ShownMoment};
use crate::screens::screen_state::{Action, FooterKeys, ScreenHelp, ScreenState, footer_keys};
use crate::widgets::columns::{Column, TableControl, TableState};
use crate::widgets::rows::rows_of;
use memlab_report::export::rows::Rows;
use memlab_units::format;

/// Screen of the steps.
#[derive(Clone, Debug)]
pub struct StepsScreen {
    /// Order and cursor.
    pub table: TableState<StepColumn>,
    /// Ends of the marked steps, at most two.
    pub(super) marks: Vec<u64>,
    /// Row of the cursor in the last frame, with the end of the step there.
    held: Option<(usize, u64)>,
    /// End of the step of the moment in the last frame.
    shown: Option<u64>,
}

impl Default for StepsScreen {
    fn default() -> Self {
        // By number, largest first: the latest step is on top.
        Self { table: TableState::new(StepColumn::Step), marks: Vec::new(), held: None, shown: None }
    }
}

impl ScreenState for StepsScreen {
    fn on_key(&mut self, key: KeyCode, context: &mut Context) {
        match key {
            KeyCode::Char('m') => self.mark_step(context),
            KeyCode::Char('M') => self.marks.clear(),
            _ => {}
        }
    }

    /// Shows the moment at the end of the step under the cursor.
    fn on_enter(&mut self, context: &mut Context) -> Option<Action> {
        if let Some(step) = self.selected_step(context) {
            context.go_to_event(step.end_event, step.end_time);
        }
        None
    }

    fn table(&mut self) -> Option<&mut dyn TableControl> {
        Some(&mut self.table)
    }

    fn footer_keys(&self, _context: &Context) -> FooterKeys {
        FooterKeys { first: footer_keys(&[("⏎", "go there"), ("m", "mark")]), ..FooterKeys::default() }
    }

    fn help(&self) -> ScreenHelp {
        ScreenHelp {
            title: "Memory by optimizer step",
            keys: &[
                ("Enter", "show that moment on every screen"),
                ("m  M", "mark a step for a comparison, clear the marks"),
            ],
        }
    }

    fn rows(&self, context: &Context) -> Option<Rows> {
        let mut rows = rows_of::<StepColumn>(&self.items(context), &[], |_| (None, Vec::new()));
        for column in missing_columns(context) {
            rows.remove(column.title());
        }
        Some(rows)
    }
}

/// Columns without figures: of a training run that reports none, and of waits that were not recorded.
pub(super) fn missing_columns(context: &Context) -> Vec<StepColumn> {
    let device = context.device();
    let trainings = device.is_some_and(|device| !device.trainings.is_empty());
    let waits = device.is_some_and(|device| !device.waits.is_empty());
    let of_training = StepColumn::OF_TRAINING.into_iter().filter(|_| !trainings);
    of_training.chain((!waits).then_some(StepColumn::Wait)).collect()
}

/// Index of the step that contains the chosen moment.
fn shown_step(context: &Context) -> Option<usize> {
    let device = context.device()?;
    let time = match context.moment {
        ShownMoment::Now => None,
        ShownMoment::Cursor => context.cursor_time(),
        ShownMoment::Peak => Some(device.totals.peak_time),
    };
    device.step_at(time?)
}

impl StepsScreen {
    /// Rows of the table, sorted.
    pub fn items(&self, context: &Context) -> Vec<StepItem> {
        let (Some(process), Some(device)) = (context.process(), context.device()) else { return Vec::new() };
        let steps = &device.steps;
        let totals = &device.totals;
        let peak = if totals.peak_allocated_bytes > 0 { device.step_at(totals.peak_time) } else { None };
        let shown = shown_step(context);
        let ooms = process.ooms.iter().filter(|oom| oom.device == totals.index);
        let ooms: Vec<_> = ooms.filter_map(|oom| device.step_at(oom.time)).collect();
        let item = |(index, step): (usize, &StepView)| {
            let before = index.checked_sub(1).map(|before| &steps[before]);
            StepItem {
                step: *step,
                wait: device.waits.get(index).copied().flatten(),
                training: device.trainings.get(index).cloned().flatten(),
                growth: before.map(|before| {
                    format::signed_difference(step.allocated_bytes_at_end, before.allocated_bytes_at_end)
                }),
                duration: before.map(|before| step.end_time.saturating_sub(before.end_time)),
                is_marked: self.marks.contains(&step.end_time),
                has_peak: peak == Some(index),
                is_shown: shown == Some(index),
                oom_count: ooms.iter().filter(|oom| **oom == index).count(),
                name: format!("step {}", step.index),
            }
        };
        let mut items: Vec<_> = steps.iter().enumerate().map(item).filter(|item| context.filter.passes(item)).collect();
        items.sort_by(|a, b| self.table.compare(a, b, context.moment));
        items
    }

    /// Marks the step under the cursor, or removes its mark. A third mark replaces the oldest.
    pub(super) fn mark_step(&mut self, context: &Context) {
        let Some(end) = self.selected_step(context).map(|step| step.end_time) else { return };
        let marks = &mut self.marks;
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

    /// Row of the cursor. While steps arrive it stays on its step; on top it stays on top.
    fn step_row(&self, items: &[StepItem]) -> usize {
        let selected = self.table.selected;
        let held = self.held.filter(|(row, _)| *row == selected && selected > 0);
        let row = held.and_then(|(_, end)| items.iter().position(|item| item.step.end_time == end));
        row.unwrap_or_else(|| selected.min(items.len().saturating_sub(1)))
    }

    /// Moves the cursor to the step of a newly chosen moment.
    fn follow_moment(&mut self, items: &[StepItem]) {
        let row = items.iter().position(|item| item.is_shown);
        let shown = row.map(|row| items[row].step.end_time);
        if shown != std::mem::replace(&mut self.shown, shown)
            && let Some(row) = row
        {
            self.table.selected = row;
            self.held = None;
        }
    }

    /// Rows, with the table's cursor moved to its row.
    pub(super) fn settled_items(&mut self, context: &Context) -> Vec<StepItem> {
        if missing_columns(context).contains(&self.table.sort) {
            self.table.sort = StepColumn::Name;
        }
        let items = self.items(context);
        self.follow_moment(&items);
        let row = self.step_row(&items);
        let table = &mut self.table;
        // The row keeps its place on the screen.
        table.offset = (table.offset + row).saturating_sub(table.selected);
        table.selected = row;
        self.held = items.get(row).map(|item| (row, item.step.end_time));
        items
    }

    /// The step under the cursor. Called frequently, also for long runs: makes all rows only if necessary.
    pub(super) fn selected_step(&self, context: &Context) -> Option<StepView> {
        let (steps, table) = (&context.device()?.steps, &self.table);
        if let Some((row, end)) = self.held
            && row == table.selected
            && row > 0
        {
            let index = steps.partition_point(|step| step.end_time < end);
            return steps.get(index).filter(|step| step.end_time == end).copied();
        }
        if table.selected == 0 && table.sort == StepColumn::Step && !table.ascending && context.filter.is_empty() {
            return steps.last().copied();
        }
        let items = self.items(context);
        let row = self.step_row(&items);
        items.get(row).map(|item| item.step)
    }
}
