//! The processes: ranks and children, a row for each device of each.

use std::cmp::Ordering;

use super::table::{Column, bytes_text};
use super::{App, Moment, Screen};
use crate::filter::{Field, Row};
use crate::format::Units;
use crate::snapshot::{ProcessSnapshot, State};
use crate::{signals, text};

/// A row of the table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProcessItem {
    /// Its place in [`App::targets`].
    pub target: usize,
    /// The process id.
    pub pid: u32,
    /// How many of its parents, and of theirs, are among those shown.
    pub depth: u16,
    /// Its place among all rows: a process comes after its parent.
    order: usize,
    /// The rank in its job.
    pub rank: Option<u32>,
    /// Whether it still writes.
    pub state: State,
    /// Where its memory is, in a word, if not on the device.
    pub moved: Option<&'static str>,
    /// The device's number and name; empty: it uses none yet.
    pub device: String,
    /// Handed out by PyTorch's allocator.
    pub allocated_bytes: u64,
    /// The most of that.
    pub peak_allocated_bytes: u64,
    /// Held by PyTorch's allocator.
    pub reserved_bytes: u64,
    /// The whole device's use.
    pub used_bytes: u64,
    /// The device's memory; 0: it uses none yet, or that is not known.
    pub total_bytes: u64,
    /// Steps ended.
    pub steps_ended: u64,
    /// Out-of-memories.
    pub oom_count: u64,
    /// What it runs.
    pub command: String,
    /// Where.
    pub host: String,
}

impl Row for ProcessItem {
    fn texts(&self) -> Vec<&str> {
        vec![&self.command, &self.device, &self.host]
    }

    fn bytes(&self) -> u64 {
        self.allocated_bytes
    }

    fn field(&self, field: Field) -> Vec<&str> {
        if field == Field::Device { vec![&self.device] } else { Vec::new() }
    }
}

/// The columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessColumn {
    /// The process id.
    Process,
    /// The rank.
    Rank,
    /// Whether it still writes.
    State,
    /// The device.
    Device,
    /// Handed out.
    Allocated,
    /// The most of that.
    Peak,
    /// Held by the allocator.
    Reserved,
    /// The device's use.
    Used,
    /// Steps ended.
    Steps,
    /// Out-of-memories.
    Ooms,
    /// What it runs.
    Command,
}

impl Column for ProcessColumn {
    type Row = ProcessItem;

    const ALL: &'static [Self] = &[
        Self::Process,
        Self::Rank,
        Self::State,
        Self::Device,
        Self::Allocated,
        Self::Peak,
        Self::Reserved,
        Self::Used,
        Self::Steps,
        Self::Ooms,
        Self::Command,
    ];

    fn title(self) -> &'static str {
        match self {
            Self::Process => "pid",
            Self::Rank => "rank",
            Self::State => "state",
            Self::Device => "device",
            Self::Allocated => "allocated",
            Self::Peak => "peak",
            Self::Reserved => "reserved",
            Self::Used => "dev. used",
            Self::Steps => "steps",
            Self::Ooms => "ooms",
            Self::Command => "command",
        }
    }

    fn columns(self) -> u16 {
        match self {
            Self::Process => 9,
            Self::Rank | Self::Ooms => 5,
            Self::State => 12,
            Self::Device | Self::Steps => 7,
            Self::Command => 0,
            _ => 10,
        }
    }

    fn shown_from(self) -> u16 {
        match self {
            Self::Steps => 84,
            Self::Reserved => 100,
            Self::Ooms => 110,
            Self::Used => 130,
            _ => 0,
        }
    }

    fn figure(self, row: &ProcessItem) -> Option<f64> {
        match self {
            Self::Allocated => Some(row.allocated_bytes as f64),
            Self::Peak => Some(row.peak_allocated_bytes as f64),
            Self::Reserved => Some(row.reserved_bytes as f64),
            Self::Used => Some(row.used_bytes as f64),
            Self::Steps => Some(row.steps_ended as f64),
            Self::Ooms => Some(row.oom_count as f64),
            // In the order of ranks, as names are.
            _ => None,
        }
    }

    fn compare_names(a: &ProcessItem, b: &ProcessItem) -> Ordering {
        a.order.cmp(&b.order)
    }

    fn text(self, row: &ProcessItem, units: Units) -> String {
        match self {
            Self::Process if row.depth > 0 => format!("└{}", row.pid),
            Self::Process => row.pid.to_string(),
            Self::Rank => row.rank.map(|rank| rank.to_string()).unwrap_or_default(),
            Self::State => row.moved.map_or_else(|| state_word(row.state), str::to_owned),
            Self::Device => row.device.split(' ').next().unwrap_or_default().to_owned(),
            Self::Allocated => bytes_text(row.allocated_bytes, units),
            Self::Peak => bytes_text(row.peak_allocated_bytes, units),
            Self::Reserved => bytes_text(row.reserved_bytes, units),
            Self::Used => bytes_text(row.used_bytes, units),
            Self::Steps if row.steps_ended == 0 => "–".to_owned(),
            Self::Steps => row.steps_ended.to_string(),
            Self::Ooms if row.oom_count == 0 => "–".to_owned(),
            Self::Ooms => row.oom_count.to_string(),
            Self::Command => String::new(),
        }
    }
}

/// A state in the column's width.
fn state_word(state: State) -> String {
    match state {
        State::Ended { signal: Some(signal), .. } => {
            signals::name(signal).map_or_else(|| format!("signal {signal}"), str::to_owned)
        }
        state => state.short(),
    }
}

/// How unevenly devices are filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Imbalance {
    /// The row with the highest peak, by its place in [`App::targets`].
    pub highest: usize,
    /// Its peak.
    pub peak_bytes: u64,
    /// The median of all peaks.
    pub median_bytes: u64,
    /// How many were compared.
    pub count: usize,
    /// Who has ended fewest steps, and by how many fewer than the one with the most; `None`: nobody lags.
    pub behind: Option<(usize, u64)>,
}

impl Imbalance {
    /// Of these rows; of ranks alone where there are any. `None`: there are no two to compare.
    pub fn of(items: &[ProcessItem]) -> Option<Self> {
        let has_ranks = items.iter().any(|item| item.rank.is_some());
        let compared = items.iter().filter(|item| !has_ranks || item.rank.is_some());
        let mut compared: Vec<_> = compared.filter(|item| item.peak_allocated_bytes > 0).collect();
        // Of equals the first.
        compared.sort_by_key(|item| (std::cmp::Reverse(item.peak_allocated_bytes), item.target));
        let [highest, _, ..] = compared[..] else { return None };
        let count = compared.len();
        let (lower, upper) = (compared[count / 2], compared[(count - 1) / 2]);
        let slowest = compared.iter().min_by_key(|item| (item.steps_ended, item.target))?;
        let most = compared.iter().map(|item| item.steps_ended).max()?;
        let lag = most - slowest.steps_ended;
        Some(Self {
            highest: highest.target,
            peak_bytes: highest.peak_allocated_bytes,
            median_bytes: lower.peak_allocated_bytes.midpoint(upper.peak_allocated_bytes),
            count,
            behind: (lag > 0).then_some((slowest.target, lag)),
        })
    }
}

/// For each process how deep it stands below its parents among them, and the order in which children follow parents.
fn family(processes: &[ProcessSnapshot]) -> (Vec<u16>, Vec<usize>) {
    let parent_of = |child: &ProcessSnapshot| {
        processes.iter().position(|parent| {
            let (parent, child) = (&parent.header, &child.header);
            parent.pid == child.parent_pid && parent.host == child.host && parent.pid != child.pid
        })
    };
    let parents: Vec<Option<usize>> = processes.iter().map(parent_of).collect();
    let mut depths = vec![0; processes.len()];
    let mut order = Vec::with_capacity(processes.len());
    let mut is_placed = vec![false; processes.len()];
    // Those without a parent first; whoever is left goes round in circles, which only a made-up trace does.
    let orphans = (0..processes.len()).filter(|index| parents[*index].is_none());
    for root in orphans.chain(0..processes.len()) {
        let mut open = vec![(root, 0_u16)];
        while let Some((index, depth)) = open.pop() {
            if std::mem::replace(&mut is_placed[index], true) {
                continue;
            }
            depths[index] = depth;
            order.push(index);
            let children = (0..processes.len()).rev().filter(|child| parents[*child] == Some(index));
            open.extend(children.map(|child| (child, depth.saturating_add(1))));
        }
    }
    (depths, order)
}

impl App {
    /// The rows of the table, sorted.
    pub fn process_items(&self) -> Vec<ProcessItem> {
        let mut items = self.device_items();
        items.retain(|item| self.filter.passes(item));
        items.sort_by(|a, b| self.processes.compare(a, b, self.moment));
        items
    }

    /// A row for each of [`App::targets`], at the moment shown: the latest, that of the cursor, or each at its own peak.
    pub fn device_items(&self) -> Vec<ProcessItem> {
        let processes = &self.shown.processes;
        let (depths, order) = family(processes);
        let mut places = vec![0; order.len()];
        for (place, index) in order.iter().enumerate() {
            places[*index] = place;
        }
        let targets = self.targets();
        let item = |(target, (index, device)): (usize, &(usize, Option<usize>))| {
            let process = &processes[*index];
            let device = device.map(|device| &process.devices[device]);
            let totals = device.map(|device| device.totals.clone()).unwrap_or_default();
            let [allocated_bytes, reserved_bytes, used_bytes] = match self.moment {
                Moment::Now | Moment::Then => [totals.allocated_bytes, totals.reserved_bytes, totals.used_bytes],
                Moment::Peak => [totals.peak_allocated_bytes, totals.reserved_bytes_at_peak, totals.used_bytes_at_peak],
            };
            ProcessItem {
                target,
                pid: process.header.pid,
                depth: depths[*index],
                order: places[*index] * targets.len() + target,
                rank: process.header.rank,
                state: process.state,
                moved: self.moved_word(process),
                device: device.map(|_| format!("cuda:{} {}", totals.index, totals.name)).unwrap_or_default(),
                allocated_bytes,
                peak_allocated_bytes: totals.peak_allocated_bytes,
                reserved_bytes,
                used_bytes,
                total_bytes: totals.total_bytes,
                steps_ended: process.shown_at.map_or(process.steps_ended, |shown_at| shown_at.steps_ended),
                oom_count: process.oom_count,
                command: text::short_command(&process.header.command),
                host: process.header.host.clone(),
            }
        };
        targets.iter().enumerate().map(item).collect()
    }

    /// Shows the device under the cursor on the overview.
    pub(super) fn show_selected_process(&mut self) {
        if let Some(item) = self.process_items().get(self.processes.selected) {
            self.set_target(item.target);
            self.screen = Screen::Overview;
        }
    }
}

#[cfg(test)]
mod tests {
    use memlab_trace::record::Header;

    use super::*;

    fn process(pid: u32, parent_pid: u32, host: &str) -> ProcessSnapshot {
        let header = Header { pid, parent_pid, host: host.to_owned(), ..Header::default() };
        ProcessSnapshot { header, ..ProcessSnapshot::default() }
    }

    #[test]
    fn children_follow_their_parents() {
        // GIVEN a grandchild, its parent and that one's, out of order, and a process on another host with the parent's pid
        let processes = [
            process(30, 20, "a"),
            process(10, 1, "a"),
            process(20, 10, "a"),
            process(11, 10, "b"),
            process(21, 10, "a"),
        ];
        // WHEN put in order THEN each comes after its parent, and deeper; the other host's stands alone
        let (depths, order) = family(&processes);
        assert_eq!(order, [1, 2, 0, 4, 3]);
        assert_eq!(depths, [2, 0, 1, 0, 1]);
    }

    #[test]
    fn parents_in_a_circle_are_all_there() {
        let processes = [process(1, 2, "a"), process(2, 1, "a"), process(3, 3, "a")];
        let (_, mut order) = family(&processes);
        order.sort_unstable();
        assert_eq!(order, [0, 1, 2]);
    }

    fn item(target: usize, rank: Option<u32>, peak_allocated_bytes: u64, steps_ended: u64) -> ProcessItem {
        ProcessItem { target, rank, peak_allocated_bytes, steps_ended, ..ProcessItem::default() }
    }

    #[test]
    fn the_highest_peak_is_told_against_the_median() {
        // GIVEN four ranks, one of which holds more and one of which lags, and a child without a rank
        let ranks =
            [item(0, Some(0), 10, 5), item(1, Some(1), 40, 5), item(2, Some(2), 12, 3), item(3, Some(3), 10, 5)];
        let mut items = ranks.to_vec();
        items.push(item(4, None, 900, 0));
        // WHEN compared THEN the child does not count, and the median lies between the two in the middle
        let all = Imbalance { highest: 1, peak_bytes: 40, median_bytes: 11, count: 4, behind: Some((2, 2)) };
        assert_eq!(Imbalance::of(&items), Some(all));
        // AND of three it is the one in the middle
        let three = Imbalance { median_bytes: 12, count: 3, ..all };
        assert_eq!(Imbalance::of(&ranks[..3]), Some(three));
        // AND one alone, or one beside those that hold nothing, is not compared
        assert_eq!(Imbalance::of(&ranks[..1]), None);
        assert_eq!(Imbalance::of(&[item(0, None, 5, 0), item(1, None, 0, 0)]), None);
    }
}
