//! Bytes by line, for one scope of lines.
//!
//! Lines are sums over cells, except for their high-water marks and their bytes at the end of the last step. For these,
//! every line has a slot that events update.

use std::collections::BTreeMap;

use hashbrown::HashMap;
use serde::{Deserialize, Serialize};

use super::cell::Cell;
use super::scope::Scope;
use super::symbols::{LineId, MissingDefinition, ResolvedLine, Symbols};

/// Bytes of one line, kept outside the cells for its high-water mark.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct LineSlot {
    pub(crate) id: LineId,
    pub(crate) bytes: u64,
    pub(crate) peak: u64,
    /// Bytes at the end of the last step, if `step_epoch` is current; otherwise they have not changed since.
    at_step: u64,
    step_epoch: u64,
    /// For a stack defined late: the slot that counts its bytes now.
    #[serde(skip)]
    moved_to: Option<u32>,
}

/// Bytes that moved from one line to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LineMove {
    pub(crate) from: u32,
    pub(crate) to: u32,
    /// Bytes live now.
    bytes: u64,
    at_peak: u64,
    /// Bytes left at the old line; `None`: it has no blocks at all.
    stays: Option<u64>,
}

impl LineMove {
    /// Returns how many of the bytes that the old line `held` at some moment belong to the new one.
    ///
    /// Stacks get their real line soon after their first use, so older bytes probably belong to blocks that stay.
    pub(crate) fn share_of(&self, held: u64) -> u64 {
        self.stays.map_or(held, |stays| held.saturating_sub(stays).min(self.bytes))
    }
}

/// Meaning of a line slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SlotMeaning {
    /// A line.
    Line,
    /// A stack whose line is not known yet.
    Stack(u32),
    /// Nothing: another slot now counts its bytes.
    Nothing,
}

/// The lines of one scope.
#[derive(Clone, Default)]
pub(crate) struct LineBook {
    scope: Scope,
    pub(crate) lines: Vec<LineSlot>,
    line_slots: HashMap<LineId, u32>,
    /// Slots of stacks without a known line, by the missing definition.
    waiting: HashMap<MissingDefinition, Vec<(u32, u32)>>,
    /// Slot of each waiting stack.
    waiting_stacks: HashMap<u32, u32>,
    pub(crate) step_epoch: u64,
}

impl LineBook {
    pub(crate) fn of(scope: Scope) -> Self {
        Self { scope, ..Self::default() }
    }

    /// Returns the approximate heap size in bytes.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.lines.capacity() * (size_of::<LineSlot>() + size_of::<(LineId, u32)>())
    }

    /// Returns the slot of a stack's line, and adds it if it is new.
    pub(crate) fn slot(&mut self, stack: u32, symbols: &mut Symbols) -> u32 {
        match symbols.resolve(stack, self.scope) {
            ResolvedLine::Line(id) => self.line_slot(id),
            ResolvedLine::Missing(missing) => self.waiting_slot(stack, missing),
        }
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

    fn waiting_slot(&mut self, stack: u32, missing: MissingDefinition) -> u32 {
        if let Some(slot) = self.waiting_stacks.get(&stack) {
            return *slot;
        }
        let slot = self.push_line(0);
        self.waiting_stacks.insert(stack, slot);
        self.waiting.entry(missing).or_default().push((stack, slot));
        slot
    }

    /// Returns the meaning of each slot.
    pub(crate) fn meanings(&self) -> Vec<SlotMeaning> {
        let moved = |line: &LineSlot| if line.moved_to.is_some() { SlotMeaning::Nothing } else { SlotMeaning::Line };
        let mut meanings: Vec<SlotMeaning> = self.lines.iter().map(moved).collect();
        for (stack, slot) in &self.waiting_stacks {
            meanings[*slot as usize] = SlotMeaning::Stack(*stack);
        }
        meanings
    }

    /// Restores the next slot of a keyframe.
    pub(crate) fn restore_line(&mut self, line: LineSlot, stands_for: SlotMeaning, symbols: &mut Symbols) {
        let slot = self.lines.len() as u32;
        self.lines.push(line);
        match stands_for {
            SlotMeaning::Nothing => {}
            SlotMeaning::Line => {
                self.line_slots.insert(line.id, slot);
            }
            SlotMeaning::Stack(stack) => {
                if let ResolvedLine::Missing(missing) = symbols.resolve(stack, self.scope) {
                    self.waiting_stacks.insert(stack, slot);
                    self.waiting.entry(missing).or_default().push((stack, slot));
                }
            }
        }
    }

    /// Resolves the stacks that waited for a definition, which has now arrived.
    pub(crate) fn defined(&mut self, missing: MissingDefinition, symbols: &mut Symbols) {
        if self.waiting.is_empty() {
            return;
        }
        for (stack, slot) in self.waiting.remove(&missing).unwrap_or_default() {
            match symbols.resolve(stack, self.scope) {
                ResolvedLine::Missing(next) => self.waiting.entry(next).or_default().push((stack, slot)),
                ResolvedLine::Line(id) => {
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
                    // The two peaks are seldom more than a few events apart, so the larger one is close enough.
                    line.peak = line.peak.max(late).max(line.bytes);
                }
            }
        }
    }

    /// Recounts every cell at the line its stack resolves to now, after definitions changed.
    ///
    /// Returns the moves, for other code that keeps figures by line. `epoch` is the ledger's.
    pub(crate) fn resolve_again(&mut self, cells: &mut [Cell], epoch: u64, symbols: &mut Symbols) -> Vec<LineMove> {
        let mut moves: BTreeMap<(u32, u32), LineMove> = BTreeMap::new();
        for cell in cells.iter_mut() {
            let from = self.line_of(cell);
            let to = match symbols.resolve(cell.key.stack, self.scope) {
                ResolvedLine::Line(id) if self.lines[from as usize].id == id => continue,
                ResolvedLine::Line(id) => self.line_slot(id),
                // A redefined frame counts no more, and the frames outside it are not known.
                ResolvedLine::Missing(missing) => self.waiting_slot(cell.key.stack, missing),
            };
            if to == from {
                continue;
            }
            cell.lines[self.scope as usize] = to;
            let moved = moves.entry((from, to)).or_insert(LineMove { from, to, bytes: 0, at_peak: 0, stays: None });
            moved.bytes = moved.bytes.saturating_add(cell.bytes);
            moved.at_peak = moved.at_peak.saturating_add(cell.at_peak(epoch));
        }
        let mut moves: Vec<LineMove> = moves.into_values().collect();
        if moves.is_empty() {
            return moves;
        }
        // Bytes now and at the peak of the remaining cells.
        let mut left = vec![(0_u64, 0_u64, false); self.lines.len()];
        for cell in cells.iter() {
            let (bytes, at_peak, any) = &mut left[self.line_of(cell) as usize];
            *bytes = bytes.saturating_add(cell.bytes);
            *at_peak = at_peak.saturating_add(cell.at_peak(epoch));
            *any = true;
        }
        for moved in &mut moves {
            let (from_has, to_has) = (left[moved.from as usize], left[moved.to as usize]);
            moved.stays = from_has.2.then_some(from_has.0);
            self.move_line(moved, from_has, to_has);
        }
        moves
    }

    /// Moves figures from one line to another.
    ///
    /// Bytes now and at the peak are exact. If only part of the line moves, the high-water mark and the bytes after the last
    /// step are estimates.
    fn move_line(&mut self, moved: &LineMove, from_has: (u64, u64, bool), to_has: (u64, u64, bool)) {
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

    /// Returns the slot that counts a cell.
    pub(crate) fn line_of(&self, cell: &Cell) -> u32 {
        self.current_line(cell.lines[self.scope as usize])
    }

    /// Returns the slot that now counts the bytes of `slot`.
    pub(crate) fn current_line(&self, slot: u32) -> u32 {
        self.lines.get(slot as usize).and_then(|line| line.moved_to).unwrap_or(slot)
    }

    /// Returns the bytes of a line at the end of the last step.
    pub(crate) fn line_at_step(&self, slot: u32) -> u64 {
        let line = &self.lines[slot as usize];
        if line.step_epoch == self.step_epoch { line.at_step } else { line.bytes }
    }

    /// Adds bytes to a cell's slot, and updates the slot to its current one.
    #[inline]
    pub(crate) fn count(&mut self, slot: &mut u32, bytes: u64) {
        let line = self.changing(slot);
        line.bytes = line.bytes.saturating_add(bytes);
        line.peak = line.peak.max(line.bytes);
    }

    /// Subtracts bytes.
    #[inline]
    pub(crate) fn discount(&mut self, slot: &mut u32, bytes: u64) {
        let line = self.changing(slot);
        line.bytes = line.bytes.saturating_sub(bytes);
    }

    #[inline]
    fn changing(&mut self, slot: &mut u32) -> &mut LineSlot {
        if let Some(target) = self.lines[*slot as usize].moved_to {
            *slot = target;
        }
        let line = &mut self.lines[*slot as usize];
        if line.step_epoch != self.step_epoch {
            line.at_step = line.bytes;
            line.step_epoch = self.step_epoch;
        }
        line
    }
}
