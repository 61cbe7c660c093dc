//! Restores a state from a keyframe.

use std::sync::Arc;

use super::packed::{self, Blocks, Points, StepRows, Tensors, TrainingRows};
use super::parts::KeyframePart;
use crate::model::device;
use crate::model::process_state::{HOST, Model};

impl Model {
    /// Restores the part of the state in one `{"keyframe":…}` line.
    ///
    /// A malformed line, or one that refers to something unknown, is counted as impossible.
    pub(in crate::model) fn restore(&mut self, json: &str) {
        let restored = serde_json::from_str(json).ok().and_then(|part| self.restore_part(part));
        if restored.is_none() {
            self.anomalies.impossible_events += 1;
        }
    }

    /// Restores a part; `None` if the line refers to something unknown.
    fn restore_part(&mut self, part: KeyframePart) -> Option<()> {
        match part {
            KeyframePart::Process {
                events,
                time,
                steps_ended,
                steps_untimed,
                phase,
                allocated,
                anomalies,
                lost_events,
            } => {
                (self.lost_events, self.steps_untimed) = (lost_events, steps_untimed);
                (self.event_count, self.latest_time, self.steps_ended, self.phase) = (events, time, steps_ended, phase);
                (self.allocated_bytes_all_devices, self.anomalies) = (allocated, anomalies);
            }
            KeyframePart::Threads { ids, in_forward, passes, looked, ranges } => {
                (self.threads.passes, self.last_scan) = (passes, looked);
                let mut ranges = ranges.into_iter();
                for (thread, in_forward) in ids.into_iter().zip(in_forward) {
                    let index = self.threads.index(thread) as usize;
                    self.threads.ranges[index] = ranges.next().unwrap_or(0);
                    let was = std::mem::replace(&mut self.threads.in_forward[index], in_forward);
                    self.threads.forward_count += u32::from(in_forward && !was);
                }
            }
            KeyframePart::Line(line) => {
                self.symbols.intern_line(&Arc::new(line));
            }
            KeyframePart::Owner { root, name } => {
                self.symbols.intern_owner(root, &name);
            }
            KeyframePart::Tensor(name) => {
                self.symbols.tensor_names.intern(name);
            }
            KeyframePart::StepList { device: None, steps } => {
                self.steps.list.extend(StepRows::default().unpacked(steps))
            }
            KeyframePart::Steps { device: None, joined, peak } => self.steps.restore(joined, peak),
            KeyframePart::StepWaits { waits } => waits.into_iter().for_each(|wait| self.step_waits.insert(wait)),
            KeyframePart::Trainings { joined, names } => {
                (self.trainings.joined, self.trainings.names) = (joined, names)
            }
            KeyframePart::TrainingList { trainings } => {
                self.trainings.list.extend(TrainingRows::default().unpacked(trainings))
            }
            KeyframePart::Search(search) => self.searches.add(search),
            KeyframePart::Oom { last: false, oom } => self.ooms.first.push(oom),
            KeyframePart::Oom { last: true, oom } => self.ooms.last.push_back(oom),
            KeyframePart::Ooms { count, rest, seen_at } => {
                (self.ooms.count, self.ooms.rest, self.ooms.seen_at) = (count, rest, seen_at);
            }
            KeyframePart::Unknown => self.anomalies.unknown_records += 1,
            KeyframePart::Source { device: HOST, source, .. } => {
                self.host.source(source);
            }
            KeyframePart::Held { device: HOST, held } => self.host.restore(held)?,
            KeyframePart::Driver { device: HOST, totals } => self.host.totals = totals,
            other => self.restore_device(other)?,
        }
        Some(())
    }

    fn restore_device(&mut self, part: KeyframePart) -> Option<()> {
        let lists = device::lists(u32::try_from(self.threads.ids.len()).ok()?);
        let (KeyframePart::Device { device, .. }
        | KeyframePart::LineSlot { device, .. }
        | KeyframePart::LayerSlot { device, .. }
        | KeyframePart::Cells { device, .. }
        | KeyframePart::Blocks { device, .. }
        | KeyframePart::Tensors { device, .. }
        | KeyframePart::Owned { device, .. }
        | KeyframePart::Source { device, .. }
        | KeyframePart::Held { device, .. }
        | KeyframePart::Work { device, .. }
        | KeyframePart::Busy { device, .. }
        | KeyframePart::Mapping { device, .. }
        | KeyframePart::Graph { device, .. }
        | KeyframePart::Driver { device, .. }
        | KeyframePart::Timeline { device, .. }
        | KeyframePart::Shares { device, .. }
        | KeyframePart::Share { device, .. }
        | KeyframePart::StepList { device: Some(device), .. }
        | KeyframePart::Steps { device: Some(device), .. }
        | KeyframePart::Snapshot { device, .. }
        | KeyframePart::Growth { device, .. }
        | KeyframePart::Windows { device, .. }
        | KeyframePart::Forwards { device, .. }
        | KeyframePart::Passes { device, .. }) = part
        else {
            return None;
        };
        let (state, symbols, _) = self.device_with_symbols(device)?;
        match part {
            KeyframePart::Device { totals, epoch, step_epoch, timeline_origin, timeline_width_log2, .. } => {
                state.totals = totals;
                state.ledger.epoch = epoch;
                state.ledger.books_mut().for_each(|book| book.step_epoch = step_epoch);
                state.timeline.points.restore_scale(timeline_origin, timeline_width_log2);
            }
            KeyframePart::LineSlot { scope, slot, stands_for, .. } => {
                state.ledger.book_mut(scope).restore_line(slot, stands_for, symbols);
            }
            KeyframePart::LayerSlot { slot, .. } => state.ledger.restore_layer(slot),
            KeyframePart::Cells { cells, .. } => {
                cells.into_iter().try_for_each(|cell| state.ledger.restore_cell(cell.into()))?;
            }
            KeyframePart::Blocks { blocks, .. } => {
                let mut rows = Blocks::default();
                for row in blocks {
                    let (block, list) = rows.unpacked(row);
                    state.ledger.cells.get(block.cell as usize)?;
                    if list.is_some_and(|list| list >= lists) || state.blocks.find(block.address).is_some() {
                        return None;
                    }
                    let slot = state.blocks.insert(block);
                    if let Some(list) = list {
                        state.blocks.link(slot, list);
                    }
                }
            }
            KeyframePart::Tensors { tensors, .. } => {
                let mut rows = Tensors::default();
                for row in tensors {
                    let (block, address, tensor, largest) = rows.unpacked(row)?;
                    let slot = state.blocks.find(block)?;
                    state.blocks.get_mut(slot).tagged = true;
                    let size = state.blocks.get(slot).bytes;
                    state.tags.restore((slot, size), address, tensor, largest, symbols);
                }
            }
            KeyframePart::Owned { owner, owned, .. } => {
                state.tags.owners.insert(owner, owned);
            }
            KeyframePart::Source { source, peak_bytes, .. } => {
                let source = state.driver.source(source);
                state.driver.held_by_source[source as usize].peak = peak_bytes;
            }
            KeyframePart::Held { held, .. } => {
                if let Some(cell) = held.cell {
                    state.ledger.cells.get(cell as usize)?;
                }
                state.driver.restore(held)?;
            }
            KeyframePart::Work { total, work, .. } => {
                state.work.total = total;
                for (key, totals) in work.into_iter().map(packed::work) {
                    state.work.insert(key?, totals);
                }
            }
            KeyframePart::Busy { busy, step_work, .. } => {
                state.work.busy = busy;
                for entry in step_work {
                    state.work.steps.insert(entry);
                }
            }
            KeyframePart::Mapping { address, mapping, .. } => {
                state.driver.mappings.insert(address, mapping);
            }
            KeyframePart::Graph { graph, captured, .. } => state.driver.private.add(graph, captured),
            KeyframePart::Driver { totals, .. } => state.driver.totals = totals,
            KeyframePart::Timeline { points, .. } => {
                state.timeline.points.list.extend(Points::default().unpacked(points))
            }
            KeyframePart::Shares { origin, width_log2, .. } => {
                state.category_timeline.points.restore_scale(origin, width_log2)
            }
            KeyframePart::Share { point, .. } => state.category_timeline.restore(point)?,
            KeyframePart::StepList { steps, .. } => state.steps.list.extend(StepRows::default().unpacked(steps)),
            KeyframePart::Steps { joined, peak, .. } => state.steps.restore(joined, peak),
            KeyframePart::Snapshot { scope, reference, snapshot, .. } => {
                state.growth.restore(scope, reference, snapshot)
            }
            KeyframePart::Growth { ended, stride, before, after, unit, backwards, .. } => {
                (state.growth.ended, state.growth.stride) = (ended, stride);
                (state.growth.cells_before, state.growth.cells_after) = (before, after);
                (state.growth.unit, state.growth.backwards) = (unit, backwards);
            }
            KeyframePart::Forwards { forwards, .. } => state.forwards = forwards,
            KeyframePart::Windows { windows, .. } => state.growth.windows = windows,
            KeyframePart::Passes { to_peak: true, passes, .. } => state.accumulation.to_peak = passes,
            KeyframePart::Passes { to_peak: false, passes, .. } => state.accumulation.now = passes,
            _ => return None,
        }
        Some(())
    }
}
