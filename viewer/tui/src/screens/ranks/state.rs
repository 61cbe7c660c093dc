//! State and keys of the ranks.

use std::path::PathBuf;
use std::sync::Arc;

use crossterm::event::KeyCode;
use memlab_job::Job;

use super::columns::RankColumn;
use super::heat::HeatScale;
use super::item::RankItem;
use super::items::device_items;
use crate::context::Context;
use crate::screen::Screen;
use crate::screens::screen_state::{Action, FooterKeys, ScreenHelp, ScreenState, footer_keys};
use crate::widgets::columns::{TableControl, TableState};
use crate::widgets::rows::rows_of;
use memlab_follow::snapshot::ProcessSnapshot;
use memlab_report::export::rows::Rows;
use memlab_report::report::{JobFinding, job_findings};

/// Screen of the ranks.
#[derive(Clone, Debug)]
pub struct RanksScreen {
    /// Order and cursor.
    pub table: TableState<RankColumn>,
    /// Scale of the heat map.
    pub scale: HeatScale,
    /// Row of the cursor in the last frame, with the trace and the device there.
    held: Option<(usize, SelectedDevice)>,
    /// Rows on the screen, as [`RankItem::target`].
    pub(super) seen: Vec<usize>,
    /// Findings on the job compared last.
    findings: Option<(Arc<Job>, Vec<JobFinding>)>,
}

/// Columns that `s` sorts by in turn; the others require a click.
const SORTS: [RankColumn; 9] = [
    RankColumn::Rank,
    RankColumn::Peak,
    RankColumn::OverMedian,
    RankColumn::Growth,
    RankColumn::Ooms,
    RankColumn::State,
    RankColumn::Allocated,
    RankColumn::Steps,
    RankColumn::Host,
];

/// A trace, and one of its devices.
type SelectedDevice = (PathBuf, u32, Option<i32>);

impl Default for RanksScreen {
    fn default() -> Self {
        Self {
            table: TableState::new(RankColumn::Rank),
            scale: HeatScale::default(),
            held: None,
            seen: Vec::new(),
            findings: None,
        }
    }
}

impl ScreenState for RanksScreen {
    fn on_key(&mut self, key: KeyCode, _context: &mut Context) {
        if key == KeyCode::Char('c') {
            self.scale = self.scale.next();
        }
    }

    /// Shows the device under the cursor on the overview.
    fn on_enter(&mut self, context: &mut Context) -> Option<Action> {
        let items = self.items(context);
        let target = items.get(self.row(context, &items))?.target;
        context.set_target(target);
        Some(Action::Show(Screen::Overview))
    }

    fn sort_by_next(&mut self, _context: &Context) {
        let place = SORTS.iter().position(|column| *column == self.table.sort);
        let next = SORTS[place.map_or(0, |place| place + 1) % SORTS.len()];
        self.table = TableState { page: self.table.page, ..TableState::new(next) };
        self.held = None;
    }

    fn table(&mut self) -> Option<&mut dyn TableControl> {
        Some(&mut self.table)
    }

    fn footer_keys(&self, _context: &Context) -> FooterKeys {
        let scale = match self.scale {
            HeatScale::HighestPeak => "vs device",
            HeatScale::Device => "vs highest",
        };
        FooterKeys { first: footer_keys(&[("⏎", "show")]), last: footer_keys(&[("c", scale)]) }
    }

    fn help(&self) -> ScreenHelp {
        ScreenHelp {
            title: "Ranks side by side and over time",
            keys: &[
                ("Enter", "show that rank; b returns from any screen"),
                ("c", "heat map: relative to the highest peak, or to the device's memory"),
                ("o  r", "offload, restore the process under the cursor"),
            ],
        }
    }

    fn rows(&self, context: &Context) -> Option<Rows> {
        Some(rows_of::<RankColumn>(&self.items(context), &[], |row| (Some(row.command.clone()), Vec::new())))
    }
}

impl RanksScreen {
    /// The rows of the table, sorted.
    pub fn items(&self, context: &Context) -> Vec<RankItem> {
        let mut items = device_items(context);
        items.retain(|item| context.filter.passes(item));
        items.sort_by(|a, b| self.table.compare(a, b, context.moment));
        items
    }

    /// The process under the cursor.
    pub fn selected_process<'c>(&self, context: &'c Context) -> Option<&'c ProcessSnapshot> {
        let items = self.items(context);
        let item = items.get(self.row(context, &items))?;
        context.snapshot.processes.get(item.of.process)
    }

    /// Processes on the screen.
    pub fn seen_processes<'c>(&self, context: &'c Context) -> impl Iterator<Item = &'c ProcessSnapshot> {
        let targets = context.targets();
        let process =
            move |target: &usize| targets.get(*target).map(|target| &context.snapshot.processes[target.process]);
        self.seen.iter().filter_map(process).collect::<Vec<_>>().into_iter()
    }

    /// Row of the cursor. It stays on its rank while others arrive or move.
    fn row(&self, context: &Context, items: &[RankItem]) -> usize {
        let held = self.held.as_ref().filter(|(row, _)| *row == self.table.selected);
        let found = held.and_then(|(_, held)| items.iter().position(|item| key(context, item).as_ref() == Some(held)));
        found.unwrap_or(self.table.selected).min(items.len().saturating_sub(1))
    }

    /// Puts the cursor on its rank, before drawing.
    pub(super) fn settle(&mut self, context: &Context, items: &[RankItem]) {
        self.table.selected = self.row(context, items);
        let held = items.get(self.table.selected).and_then(|item| key(context, item));
        self.held = held.map(|held| (self.table.selected, held));
    }

    /// Recomputes the findings on the job after a new comparison.
    pub(super) fn update_findings(&mut self, context: &Context) {
        let is_known = match (&self.findings, &context.snapshot.job) {
            (Some((known, _)), Some(job)) => Arc::ptr_eq(known, job),
            (None, None) => true,
            _ => false,
        };
        if !is_known {
            self.findings = context.snapshot.job.as_ref().map(|job| (job.clone(), job_findings(job)));
        }
    }

    /// Findings on the job.
    pub(super) fn findings(&self) -> &[JobFinding] {
        self.findings.as_ref().map_or(&[], |(_, findings)| findings)
    }
}

fn key(context: &Context, item: &RankItem) -> Option<SelectedDevice> {
    let process = context.snapshot.processes.get(item.of.process)?;
    let device = item.of.device.and_then(|device| process.devices.get(device));
    Some((process.path.clone(), process.header.pid, device.map(|device| device.totals.index)))
}
