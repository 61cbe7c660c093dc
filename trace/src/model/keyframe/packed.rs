//! Rows of a keyframe: arrays of numbers. Figures that grow are stored as differences from the previous row.

use serde::{Deserialize, Serialize};

use crate::model::blocks::Block;
use crate::model::cell::{Cell, CellKey};
use crate::model::classification::Classification;
use crate::model::gpu_work::WorkKey;
use crate::model::history_views::{Range, StepView, TimelinePoint};
use crate::model::scope::SCOPES;
use crate::model::tags::{CATEGORIES, TaggedTensor};
use crate::model::trainings::Training;
use crate::model::views::WorkTotals;
use memlab_format::record::Phase;

/// `[address, bytes, born, time, cell, list]`; address, born and time as differences; list -1: none.
pub(super) type BlockRow = [i64; 6];

/// Packs the rows of one line; differences start at zero.
#[derive(Default)]
pub(super) struct Blocks {
    address: u64,
    born: u64,
    time: u64,
}

/// Returns the difference from `last` to `next`, and sets `last` to `next`.
fn difference(last: &mut u64, next: u64) -> i64 {
    let difference = next.wrapping_sub(*last) as i64;
    *last = next;
    difference
}

/// The inverse of [`difference`].
fn sum(last: &mut u64, difference: i64) -> u64 {
    *last = last.wrapping_add_signed(difference);
    *last
}

impl Blocks {
    pub(super) fn packed(&mut self, block: &Block, list: Option<u32>) -> BlockRow {
        [
            difference(&mut self.address, block.address),
            block.bytes as i64,
            difference(&mut self.born, block.born),
            difference(&mut self.time, block.time),
            i64::from(block.cell),
            list.map_or(-1, i64::from),
        ]
    }

    pub(super) fn unpacked(&mut self, [address, bytes, born, time, cell, list]: BlockRow) -> (Block, Option<u32>) {
        let (address, born, time) =
            (sum(&mut self.address, address), sum(&mut self.born, born), sum(&mut self.time, time));
        // A number out of range matches no cell, so the block is refused.
        let cell = u32::try_from(cell).unwrap_or(u32::MAX);
        let list = (list >= 0).then(|| u32::try_from(list).unwrap_or(u32::MAX));
        (Block::new(address, bytes as u64, born, time, cell), list)
    }
}

/// Block, offset in it, category, bytes, owner, true for the block's largest tensor, and name; block as a difference.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct TensorRow(i64, i64, i64, i64, i64, i64, #[serde(default)] u32);

/// Packs tensor rows, as [`Blocks`] does.
#[derive(Default)]
pub(super) struct Tensors {
    block: u64,
}

impl Tensors {
    pub(super) fn packed(&mut self, (block, address, tensor, largest): (u64, u64, TaggedTensor, bool)) -> TensorRow {
        TensorRow(
            difference(&mut self.block, block),
            address.wrapping_sub(block) as i64,
            tensor.category as i64,
            tensor.bytes as i64,
            i64::from(tensor.owner),
            i64::from(largest),
            tensor.name,
        )
    }

    pub(super) fn unpacked(&mut self, row: TensorRow) -> Option<(u64, u64, TaggedTensor, bool)> {
        let TensorRow(block, offset, category, bytes, owner, largest, name) = row;
        let block = sum(&mut self.block, block);
        let category = *CATEGORIES.get(usize::try_from(category).ok()?)?;
        let tensor = TaggedTensor { category, bytes: bytes as u64, owner: u32::try_from(owner).ok()?, name };
        Some((block, block.wrapping_add_signed(offset), tensor, largest != 0))
    }
}

/// A cell: stack, layer, owner, classification and phase, its figures, its line slots and layer slot, and 1 if autograd
/// nodes were created with it.
///
/// The range follows if its blocks were allocated in one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct CellRow(
    u32,
    u32,
    u32,
    Classification,
    Phase,
    [u64; 6],
    [u32; SCOPES],
    u32,
    u8,
    #[serde(default, skip_serializing_if = "is_none")] u32,
);

fn is_none(range: &u32) -> bool {
    *range == 0
}

impl From<Cell> for CellRow {
    fn from(cell: Cell) -> Self {
        let CellKey { stack, layer, owner, range, classification, phase } = cell.key;
        let (figures, lines, layer_slot) = cell.figures();
        let makes_graph = u8::from(cell.makes_graph);
        Self(stack, layer, owner, classification, phase, figures, lines, layer_slot, makes_graph, range)
    }
}

impl From<CellRow> for Cell {
    fn from(
        CellRow(stack, layer, owner, classification, phase, figures, lines, layer_slot, makes_graph, range): CellRow,
    ) -> Self {
        let key = CellKey { stack, layer, owner, range, classification, phase };
        let mut cell = Self::of(key, figures, lines, layer_slot);
        cell.makes_graph = makes_graph != 0;
        cell
    }
}

/// `[time, allocated: min, max, last, reserved: …, used: …]`; time as a difference.
pub(super) type PointRow = [u64; 10];

/// Packs points, as [`Blocks`] does.
#[derive(Default)]
pub(super) struct Points {
    time: u64,
}

impl Points {
    pub(super) fn packed(mut self, points: &[TimelinePoint]) -> Vec<PointRow> {
        let row = |point: &TimelinePoint| {
            let [a, r, u] = [point.allocated, point.reserved, point.used];
            let time = difference(&mut self.time, point.time) as u64;
            [time, a.min, a.max, a.last, r.min, r.max, r.last, u.min, u.max, u.last]
        };
        points.iter().map(row).collect()
    }

    pub(super) fn unpacked(mut self, rows: Vec<PointRow>) -> impl Iterator<Item = TimelinePoint> {
        rows.into_iter().map(move |[time, a, b, c, d, e, f, g, h, i]| TimelinePoint {
            time: sum(&mut self.time, time as i64),
            allocated: Range { min: a, max: b, last: c },
            reserved: Range { min: d, max: e, last: f },
            used: Range { min: g, max: h, last: i },
        })
    }
}

/// `[index, steps joined, end, peak, allocated at the end, events]`; index, end and events as differences.
pub(super) type StepRow = [i64; 6];

/// Packs step rows, as [`Blocks`] does.
#[derive(Default)]
pub(super) struct StepRows {
    index: u64,
    end: u64,
    events: u64,
}

impl StepRows {
    pub(super) fn packed(mut self, steps: &[StepView]) -> Vec<StepRow> {
        let row = |step: &StepView| {
            [
                difference(&mut self.index, step.index),
                step.steps as i64,
                difference(&mut self.end, step.end_time),
                step.peak_allocated_bytes as i64,
                step.allocated_bytes_at_end as i64,
                difference(&mut self.events, step.end_event),
            ]
        };
        steps.iter().map(row).collect()
    }

    pub(super) fn unpacked(mut self, rows: Vec<StepRow>) -> impl Iterator<Item = StepView> {
        rows.into_iter().map(move |[index, steps, end, peak, at_end, events]| StepView {
            index: sum(&mut self.index, index),
            steps: steps as u64,
            end_time: sum(&mut self.end, end),
            peak_allocated_bytes: peak as u64,
            allocated_bytes_at_end: at_end as u64,
            end_event: sum(&mut self.events, events),
        })
    }
}

/// `[stack, layer, phase, kernel, calls, nanoseconds, bytes]`.
pub(super) type WorkRow = [u64; 7];

pub(super) fn work_row((stack, layer, phase, kernel): WorkKey, totals: &WorkTotals) -> WorkRow {
    [stack.into(), layer.into(), phase.into(), kernel.into(), totals.calls, totals.nanoseconds, totals.bytes]
}

/// Unpacks a row; the key is `None` if a number is too large.
pub(super) fn work([stack, layer, phase, kernel, calls, nanoseconds, bytes]: WorkRow) -> (Option<WorkKey>, WorkTotals) {
    let id = |number: u64| u32::try_from(number).ok();
    let key = || Some((id(stack)?, id(layer)?, u8::try_from(phase).ok()?, id(kernel)?));
    (key(), WorkTotals { calls, nanoseconds, bytes })
}

/// `[first step, last step, epoch, batch, phase, samples, duration, loss, its samples, way, pieces, offloaded]`.
///
/// The first step is a difference from the last step of the previous row; the last step, from the first step. The loss is
/// stored as its bits. Names are numbers; 0: none.
pub(super) type TrainingRow = [u64; 12];

/// Packs training rows, as [`Blocks`] does.
#[derive(Default)]
pub(super) struct TrainingRows {
    step: u64,
}

impl TrainingRows {
    pub(super) fn packed(mut self, trainings: &[Training]) -> Vec<TrainingRow> {
        let row = |of: &Training| {
            [
                difference(&mut self.step, of.first) as u64,
                difference(&mut self.step, of.last) as u64,
                of.epoch,
                of.batch,
                u64::from(of.phase),
                of.samples,
                of.duration,
                of.loss.to_bits(),
                of.loss_samples,
                u64::from(of.way),
                of.pieces,
                of.offloaded_bytes,
            ]
        };
        trainings.iter().map(row).collect()
    }

    pub(super) fn unpacked(mut self, rows: Vec<TrainingRow>) -> impl Iterator<Item = Training> {
        let name = |number: u64| u32::try_from(number).unwrap_or(0);
        rows.into_iter().map(
            move |[first, last, epoch, batch, phase, samples, duration, loss, loss_samples, way, pieces, offloaded]| {
                Training {
                    first: sum(&mut self.step, first as i64),
                    last: sum(&mut self.step, last as i64),
                    epoch,
                    batch,
                    phase: name(phase),
                    samples,
                    duration,
                    loss: f64::from_bits(loss),
                    loss_samples,
                    way: name(way),
                    pieces,
                    offloaded_bytes: offloaded,
                }
            },
        )
    }
}
