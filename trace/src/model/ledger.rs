//! The books of one device: who holds how many bytes now, and who held how many at the peak.
//!
//! Every live block is counted by exactly one *cell*: all blocks of the same stack, layer, owner, phase and
//! kind. Lines, layers, categories and stacks are sums over cells, made when they are shown, so that an event
//! touches one cell and one line.
//!
//! What a cell held at the peak is known without a copy of all cells at every new peak: a peak only raises
//! `epoch`; a cell notes what it holds on its first change after that. A cell that still has an older epoch
//! has not changed since the peak, so it held then what it holds now.

use std::collections::BTreeMap;

use hashbrown::HashMap;
use serde::{Deserialize, Serialize};

use super::kind::Kind;
use super::symbols::{LineId, Missing, Resolved, Symbols};
use super::views::Shares;
use crate::record::Phase;

/// What the blocks of a cell have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CellKey {
    pub(crate) stack: u32,
    pub(crate) layer: u32,
    /// The owner by tags ([`Symbols::owner`]); 0: none.
    pub(crate) owner: u32,
    pub(crate) kind: Kind,
    pub(crate) phase: Phase,
}

/// The bytes of all blocks with one key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cell {
    pub(crate) key: CellKey,
    pub(crate) bytes: u64,
    at_peak: u64,
    epoch: u64,
    pub(crate) blocks: u64,
    /// Blocks that began in this cell, over the run; they stay counted here when their kind changes.
    pub(crate) allocations: u64,
    pub(crate) allocated_bytes: u64,
    line: u32,
    layer: u32,
    /// Whether operations that allocated here made autograd nodes.
    pub(crate) makes_graph: bool,
}

impl Cell {
    /// Its figures, and its line and layer slots, for a keyframe.
    pub(crate) fn figures(&self) -> ([u64; 6], [u32; 2]) {
        let figures = [self.bytes, self.at_peak, self.epoch, self.blocks, self.allocations, self.allocated_bytes];
        (figures, [self.line, self.layer])
    }

    /// A cell of these.
    pub(crate) fn of(key: CellKey, figures: [u64; 6], [line, layer]: [u32; 2]) -> Self {
        let [bytes, at_peak, epoch, blocks, allocations, allocated_bytes] = figures;
        Self { key, bytes, at_peak, epoch, blocks, allocations, allocated_bytes, line, layer, makes_graph: false }
    }
}

/// What one line holds: kept apart from the cells for its own high-water mark.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct LineSlot {
    pub(crate) id: LineId,
    pub(crate) bytes: u64,
    pub(crate) peak: u64,
    /// What it held at the end of the last step, if `step_epoch` is the current one; else it still holds that.
    at_step: u64,
    step_epoch: u64,
    /// This slot stood for a stack whose definition was late; its bytes are now counted there.
    #[serde(skip)]
    moved_to: Option<u32>,
}

/// Bytes that are counted at another line from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moved {
    pub(crate) from: u32,
    pub(crate) to: u32,
    /// Live now.
    bytes: u64,
    at_peak: u64,
    /// What is left at the old line; `None`: no block ever was.
    stays: Option<u64>,
}

impl Moved {
    /// How much of what the old line held at some moment belongs to the new one. Places get their real line soon after
    /// they are met, so that what the old line held long ago was rather what it still holds.
    pub(crate) fn share_of(&self, held: u64) -> u64 {
        self.stays.map_or(held, |stays| held.saturating_sub(stays).min(self.bytes))
    }
}

/// What a line slot stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Standing {
    /// Its line.
    Line,
    /// A stack whose line is not known yet.
    Stack(u32),
    /// Nothing any more: what it counted is counted elsewhere.
    Nothing,
}

/// The activations of one layer: kept apart for their own high-water mark.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct LayerSlot {
    pub(crate) layer: u32,
    /// Of those decided.
    pub(crate) activation: u64,
    pub(crate) activation_peak: u64,
}

/// The books.
#[derive(Clone, Default)]
pub(crate) struct Ledger {
    pub(crate) cells: Vec<Cell>,
    by_key: HashMap<CellKey, u32>,
    pub(crate) lines: Vec<LineSlot>,
    line_slots: HashMap<LineId, u32>,
    pub(crate) layers: Vec<LayerSlot>,
    layer_slots: HashMap<u32, u32>,
    /// Slots that stand for stacks whose line is not known yet, by what they wait for.
    waiting: HashMap<Missing, Vec<(u32, u32)>>,
    /// The slot of each stack that waits.
    waiting_stacks: HashMap<u32, u32>,
    pub(crate) epoch: u64,
    pub(crate) step_epoch: u64,
    /// What is live, by category.
    pub(crate) shares: Shares,
}

impl Ledger {
    /// Bytes taken, about.
    pub(crate) fn weight(&self) -> usize {
        self.cells.capacity() * (size_of::<Cell>() + size_of::<(CellKey, u32)>())
            + self.lines.capacity() * (size_of::<LineSlot>() + size_of::<(LineId, u32)>())
            + self.layers.capacity() * (size_of::<LayerSlot>() + size_of::<(u32, u32)>())
    }

    /// The cell with this key, made if need be.
    #[inline]
    pub(crate) fn cell(&mut self, key: CellKey, symbols: &mut Symbols) -> u32 {
        if let Some(cell) = self.by_key.get(&key) {
            return *cell;
        }
        self.new_cell(key, symbols)
    }

    #[cold]
    fn new_cell(&mut self, key: CellKey, symbols: &mut Symbols) -> u32 {
        let line = match symbols.resolve(key.stack) {
            Resolved::Line(id) => self.line_slot(id),
            Resolved::Missing(missing) => self.waiting_slot(key.stack, missing),
        };
        let layers = &mut self.layers;
        let layer = *self.layer_slots.entry(key.layer).or_insert_with(|| {
            layers.push(LayerSlot { layer: key.layer, activation: 0, activation_peak: 0 });
            (layers.len() - 1) as u32
        });
        let cell = self.cells.len() as u32;
        self.cells.push(Cell {
            key,
            bytes: 0,
            at_peak: 0,
            epoch: self.epoch,
            blocks: 0,
            allocations: 0,
            allocated_bytes: 0,
            line,
            layer,
            makes_graph: false,
        });
        self.by_key.insert(key, cell);
        cell
    }

    fn push_line(&mut self, id: LineId) -> u32 {
        self.lines.push(LineSlot { id, bytes: 0, peak: 0, at_step: 0, step_epoch: self.step_epoch, moved_to: None });
        (self.lines.len() - 1) as u32
    }

    fn line_slot(&mut self, id: LineId) -> u32 {
        if let Some(slot) = self.line_slots.get(&id) {
            return *slot;
        }
        let slot = self.push_line(id);
        self.line_slots.insert(id, slot);
        slot
    }

    fn waiting_slot(&mut self, stack: u32, missing: Missing) -> u32 {
        if let Some(slot) = self.waiting_stacks.get(&stack) {
            return *slot;
        }
        let slot = self.push_line(0);
        self.waiting_stacks.insert(stack, slot);
        self.waiting.entry(missing).or_default().push((stack, slot));
        slot
    }

    /// What every line slot stands for.
    pub(crate) fn standing(&self) -> Vec<Standing> {
        let moved = |line: &LineSlot| if line.moved_to.is_some() { Standing::Nothing } else { Standing::Line };
        let mut standing: Vec<Standing> = self.lines.iter().map(moved).collect();
        for (stack, slot) in &self.waiting_stacks {
            standing[*slot as usize] = Standing::Stack(*stack);
        }
        standing
    }

    /// A cell that names the line slot that counts for it now.
    pub(crate) fn with_current_line(&self, cell: &Cell) -> Cell {
        Cell { line: self.line_of(cell), ..*cell }
    }

    /// Takes over the next line slot of a keyframe.
    pub(crate) fn restore_line(&mut self, line: LineSlot, stands_for: Standing, symbols: &mut Symbols) {
        let slot = self.lines.len() as u32;
        self.lines.push(line);
        match stands_for {
            Standing::Nothing => {}
            Standing::Line => {
                self.line_slots.insert(line.id, slot);
            }
            Standing::Stack(stack) => {
                if let Resolved::Missing(missing) = symbols.resolve(stack) {
                    self.waiting_stacks.insert(stack, slot);
                    self.waiting.entry(missing).or_default().push((stack, slot));
                }
            }
        }
    }

    /// Takes over the next layer slot of a keyframe.
    pub(crate) fn restore_layer(&mut self, layer: LayerSlot) {
        self.layer_slots.insert(layer.layer, self.layers.len() as u32);
        self.layers.push(layer);
    }

    /// Takes over the next cell of a keyframe; `None` if its line or layer is not known.
    pub(crate) fn restore_cell(&mut self, cell: Cell) -> Option<()> {
        self.lines.get(cell.line as usize)?;
        self.layers.get(cell.layer as usize)?;
        self.by_key.insert(cell.key, self.cells.len() as u32);
        let share = &mut self.shares[cell.key.kind.share()];
        *share = share.saturating_add(cell.bytes);
        self.cells.push(cell);
        Some(())
    }

    /// Looks again for the lines of stacks that waited for a definition, which has now come.
    pub(crate) fn defined(&mut self, missing: Missing, symbols: &mut Symbols) {
        if self.waiting.is_empty() {
            return;
        }
        for (stack, slot) in self.waiting.remove(&missing).unwrap_or_default() {
            match symbols.resolve(stack) {
                Resolved::Missing(next) => self.waiting.entry(next).or_default().push((stack, slot)),
                Resolved::Line(id) => {
                    self.waiting_stacks.remove(&stack);
                    let target = self.line_slot(id);
                    let (bytes, at_step) = (self.lines[slot as usize].bytes, self.line_at_step(slot));
                    let late = self.lines[slot as usize].peak;
                    self.lines[slot as usize] =
                        LineSlot { bytes: 0, peak: 0, at_step: 0, moved_to: Some(target), ..self.lines[slot as usize] };
                    let target_at_step = self.line_at_step(target);
                    let line = &mut self.lines[target as usize];
                    line.at_step = target_at_step.saturating_add(at_step);
                    line.step_epoch = self.step_epoch;
                    line.bytes = line.bytes.saturating_add(bytes);
                    // The two are seldom apart for more than a few events: the larger of their peaks is near enough.
                    line.peak = line.peak.max(late).max(line.bytes);
                }
            }
        }
    }

    /// Definitions changed: counts every cell at the line its stack leads to now. What moved where, for those who
    /// keep figures of lines themselves.
    pub(crate) fn resolve_again(&mut self, symbols: &mut Symbols) -> Vec<Moved> {
        let mut moves: BTreeMap<(u32, u32), Moved> = BTreeMap::new();
        for index in 0..self.cells.len() {
            let from = self.current_line(self.cells[index].line);
            let Resolved::Line(id) = symbols.resolve(self.cells[index].key.stack) else { continue };
            if self.lines[from as usize].id == id {
                continue;
            }
            let to = self.line_slot(id);
            let cell = &mut self.cells[index];
            cell.line = to;
            let (bytes, at_peak) = (cell.bytes, self.at_peak(&self.cells[index]));
            let moved = moves.entry((from, to)).or_insert(Moved { from, to, bytes: 0, at_peak: 0, stays: None });
            moved.bytes = moved.bytes.saturating_add(bytes);
            moved.at_peak = moved.at_peak.saturating_add(at_peak);
        }
        let mut moves: Vec<Moved> = moves.into_values().collect();
        if moves.is_empty() {
            return moves;
        }
        // What the cells that stay hold, and held at the peak.
        let mut left = vec![(0_u64, 0_u64, false); self.lines.len()];
        for cell in &self.cells {
            let (bytes, at_peak, any) = &mut left[self.line_of(cell) as usize];
            *bytes = bytes.saturating_add(cell.bytes);
            *at_peak = at_peak.saturating_add(self.at_peak(cell));
            *any = true;
        }
        for moved in &mut moves {
            let (from_has, to_has) = (left[moved.from as usize], left[moved.to as usize]);
            moved.stays = from_has.2.then_some(from_has.0);
            self.move_line(moved, from_has, to_has);
        }
        moves
    }

    /// Carries figures from one line to another. Those of now and of the peak are exact; what only the line knows (its
    /// own most, what it held after the last step) is, where not all of it moves, as near as can be told.
    fn move_line(&mut self, moved: &Moved, from_has: (u64, u64, bool), to_has: (u64, u64, bool)) {
        let (from_at_step, to_at_step) = (self.line_at_step(moved.from), self.line_at_step(moved.to));
        let step_epoch = self.step_epoch;
        let at_step = moved.share_of(from_at_step);
        let from = &mut self.lines[moved.from as usize];
        let most = moved.share_of(from.peak).max(moved.bytes).max(moved.at_peak);
        (from.at_step, from.step_epoch) = (from_at_step - at_step, step_epoch);
        from.bytes = from_has.0;
        from.peak = from.peak.saturating_sub(most).max(from_has.0).max(from_has.1);
        let to = &mut self.lines[moved.to as usize];
        (to.at_step, to.step_epoch) = (to_at_step.saturating_add(at_step), step_epoch);
        to.bytes = to_has.0;
        to.peak = to.peak.max(most).max(to_has.0).max(to_has.1);
    }

    /// What every layer slot's pending blocks take that are shown as activations.
    pub(crate) fn pending_activations(&self) -> Vec<u64> {
        let mut pending = vec![0_u64; self.layers.len()];
        for cell in self.cells.iter().filter(|cell| cell.key.kind == Kind::InForward) {
            let bytes = &mut pending[cell.layer as usize];
            *bytes = bytes.saturating_add(cell.bytes);
        }
        pending
    }

    /// The line slot that counts for a cell.
    pub(crate) fn line_of(&self, cell: &Cell) -> u32 {
        self.current_line(cell.line)
    }

    /// The slot that counts now for what was once counted in `slot`.
    pub(crate) fn current_line(&self, slot: u32) -> u32 {
        self.lines.get(slot as usize).and_then(|line| line.moved_to).unwrap_or(slot)
    }

    /// What a line held at the end of the last step.
    pub(crate) fn line_at_step(&self, slot: u32) -> u64 {
        let line = &self.lines[slot as usize];
        if line.step_epoch == self.step_epoch { line.at_step } else { line.bytes }
    }

    /// What a cell held at the peak.
    pub(crate) fn at_peak(&self, cell: &Cell) -> u64 {
        if cell.epoch == self.epoch { cell.at_peak } else { cell.bytes }
    }

    /// The cell, with what it held at the peak noted before it changes.
    #[inline]
    fn changing(&mut self, cell: u32) -> &mut Cell {
        let cell = &mut self.cells[cell as usize];
        if cell.epoch != self.epoch {
            cell.at_peak = cell.bytes;
            cell.epoch = self.epoch;
        }
        cell
    }

    #[inline]
    fn changing_line(&mut self, cell: u32) -> &mut LineSlot {
        let cell = &mut self.cells[cell as usize];
        if let Some(target) = self.lines[cell.line as usize].moved_to {
            cell.line = target;
        }
        let line = &mut self.lines[cell.line as usize];
        if line.step_epoch != self.step_epoch {
            line.at_step = line.bytes;
            line.step_epoch = self.step_epoch;
        }
        line
    }

    /// A new block is counted by `cell`.
    #[inline]
    pub(crate) fn allocate(&mut self, cell: u32, bytes: u64, makes_graph: bool) {
        self.count(cell, bytes);
        let counted = &mut self.cells[cell as usize];
        counted.makes_graph |= makes_graph;
        counted.allocations = counted.allocations.saturating_add(1);
        counted.allocated_bytes = counted.allocated_bytes.saturating_add(bytes);
        let line = self.changing_line(cell);
        line.bytes = line.bytes.saturating_add(bytes);
        line.peak = line.peak.max(line.bytes);
    }

    /// A block counted by `cell` is gone.
    #[inline]
    pub(crate) fn free(&mut self, cell: u32, bytes: u64) {
        self.discount(cell, bytes);
        let line = self.changing_line(cell);
        line.bytes = line.bytes.saturating_sub(bytes);
    }

    /// A block counted by `from` turns out to belong to `to`; `lived_at_peak`: and did so at the peak.
    pub(crate) fn shift(&mut self, from: u32, to: u32, bytes: u64, lived_at_peak: bool) {
        if from == to {
            return;
        }
        self.discount(from, bytes);
        self.count(to, bytes);
        self.cells[to as usize].makes_graph |= self.cells[from as usize].makes_graph;
        if lived_at_peak {
            self.shift_at_peak(from, to, bytes);
        }
    }

    /// A block counted by `from` at the peak turns out to have belonged to `to`.
    pub(crate) fn shift_at_peak(&mut self, from: u32, to: u32, bytes: u64) {
        let from = self.changing(from);
        from.at_peak = from.at_peak.saturating_sub(bytes);
        let to = self.changing(to);
        to.at_peak = to.at_peak.saturating_add(bytes);
    }

    #[inline]
    fn count(&mut self, cell: u32, bytes: u64) {
        let cell = self.changing(cell);
        cell.bytes = cell.bytes.saturating_add(bytes);
        cell.blocks = cell.blocks.saturating_add(1);
        let share = cell.key.kind.share();
        if cell.key.kind == Kind::Activation {
            let layer = cell.layer;
            let layer = &mut self.layers[layer as usize];
            layer.activation = layer.activation.saturating_add(bytes);
            layer.activation_peak = layer.activation_peak.max(layer.activation);
        }
        self.shares[share] = self.shares[share].saturating_add(bytes);
    }

    #[inline]
    fn discount(&mut self, cell: u32, bytes: u64) {
        let cell = self.changing(cell);
        cell.bytes = cell.bytes.saturating_sub(bytes);
        cell.blocks = cell.blocks.saturating_sub(1);
        let share = cell.key.kind.share();
        if cell.key.kind == Kind::Activation {
            let layer = cell.layer;
            let layer = &mut self.layers[layer as usize];
            layer.activation = layer.activation.saturating_sub(bytes);
        }
        self.shares[share] = self.shares[share].saturating_sub(bytes);
    }
}
