//! Rows of the ranks: ranks and child processes, one row per device.

use std::collections::HashMap;

use memlab_trace::DeviceView;
use memlab_trace::record::Header;

use super::imbalance::Imbalance;
use super::item::RankItem;
use crate::context::{Context, ShownMoment, Target};
use memlab_base::text;
use memlab_follow::snapshot::ProcessSnapshot;

/// A row for each of [`Context::targets`] at the displayed moment: the latest, the cursor's, or each at its own peak.
pub fn device_items(context: &Context) -> Vec<RankItem> {
    let processes = &context.snapshot.processes;
    let (depths, order) = family(processes);
    let mut places = vec![0; order.len()];
    for (place, index) in order.iter().enumerate() {
        places[*index] = place;
    }
    let targets = context.targets();
    let none = DeviceView::default();
    let item = |(target, &of): (usize, &Target)| {
        let Target { process: index, device } = of;
        let process = &processes[index];
        let device = device.map(|device| &process.devices[device]);
        let totals = device.map_or(&none, |device| &device.totals);
        let [allocated_bytes, reserved_bytes, used_bytes] = match context.moment {
            ShownMoment::Now | ShownMoment::Cursor => {
                [totals.allocated_bytes, totals.reserved_bytes, totals.used_bytes]
            }
            ShownMoment::Peak => {
                [totals.peak_allocated_bytes, totals.reserved_bytes_at_peak, totals.used_bytes_at_peak]
            }
        };
        RankItem {
            target,
            of,
            name: name(process, of.device.map(|_| totals.index)),
            pid: process.header.pid,
            depth: depths[index],
            order: places[index] * targets.len() + target,
            rank: process.header.rank,
            state: process.state,
            moved: context.memory_location_word(process),
            device: device.map(|_| format!("cuda:{} {}", totals.index, totals.name)).unwrap_or_default(),
            allocated_bytes,
            is_about: process.is_summary && context.moment == ShownMoment::Cursor,
            peak_allocated_bytes: totals.peak_allocated_bytes,
            over_median_bytes: None,
            growth_per_step: device.and_then(|device| device.growth_per_step),
            reserved_bytes,
            used_bytes,
            total_bytes: totals.total_bytes,
            steps_ended: process.shown_at.map_or(process.steps_ended, |shown_at| shown_at.steps_ended),
            oom_count: process.oom_count,
            command: text::short_command(&process.header.command),
            host: process.header.host.clone(),
        }
    };
    let mut items: Vec<RankItem> = targets.iter().enumerate().map(item).collect();
    if let Some(median) = Imbalance::of(&items).map(|imbalance| imbalance.median_bytes) {
        let has_ranks = items.iter().any(|item| item.rank.is_some());
        let is_compared = |item: &RankItem| item.peak_allocated_bytes > 0 && (!has_ranks || item.rank.is_some());
        for item in items.iter_mut().filter(|item| is_compared(item)) {
            item.over_median_bytes = Some(
                item.peak_allocated_bytes.saturating_sub(median) as i64
                    - median.saturating_sub(item.peak_allocated_bytes) as i64,
            );
        }
    }
    items
}

/// Name of a device beside others.
fn name(process: &ProcessSnapshot, device: Option<i32>) -> String {
    let device = device.map(|device| format!(" cuda:{device}")).unwrap_or_default();
    match process.header.rank {
        Some(rank) if process.devices.len() < 2 => format!("rank {rank}"),
        Some(rank) => format!("rank {rank}{device}"),
        None => format!("{}{device}", process.header.pid),
    }
}

/// Depth of each process below its parents among them, and the order in which children follow parents.
fn family(processes: &[ProcessSnapshot]) -> (Vec<u16>, Vec<usize>) {
    let place = |host: &str, pid: u32| (host.to_owned(), pid);
    let mut by_pid: HashMap<(String, u32), usize> = HashMap::new();
    for (index, Header { host, pid, .. }) in processes.iter().map(|process| &process.header).enumerate() {
        by_pid.entry(place(host, *pid)).or_insert(index);
    }
    let parent_of = |process: &ProcessSnapshot| {
        let Header { host, pid, parent_pid, .. } = &process.header;
        by_pid.get(&place(host, *parent_pid)).copied().filter(|_| parent_pid != pid)
    };
    let parents: Vec<Option<usize>> = processes.iter().map(parent_of).collect();
    let mut children = vec![Vec::new(); processes.len()];
    for (child, parent) in parents.iter().enumerate() {
        if let Some(parent) = parent {
            children[*parent].push(child);
        }
    }
    let mut depths = vec![0; processes.len()];
    let mut order = Vec::with_capacity(processes.len());
    let mut is_placed = vec![false; processes.len()];
    // Orphans first. The rest form cycles, which only malicious traces have.
    let orphans = (0..processes.len()).filter(|index| parents[*index].is_none());
    for root in orphans.chain(0..processes.len()) {
        let mut open = vec![(root, 0_u16)];
        while let Some((index, depth)) = open.pop() {
            if std::mem::replace(&mut is_placed[index], true) {
                continue;
            }
            depths[index] = depth;
            order.push(index);
            open.extend(children[index].iter().rev().map(|child| (*child, depth.saturating_add(1))));
        }
    }
    (depths, order)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, parent_pid: u32, host: &str) -> ProcessSnapshot {
        let header = Header { pid, parent_pid, host: host.to_owned(), ..Header::default() };
        ProcessSnapshot { header, ..ProcessSnapshot::default() }
    }

    #[test]
    fn children_follow_their_parents() {
        // GIVEN a grandchild, its parent and grandparent, out of order, and a process on another host with the parent's
        // pid
        let processes = [
            process(30, 20, "a"),
            process(10, 1, "a"),
            process(20, 10, "a"),
            process(11, 10, "b"),
            process(21, 10, "a"),
        ];
        // WHEN sorted THEN each follows its parent, and is deeper; the other host's stands alone
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
}
