//! Ledger of one device: bytes by stack, layer, category and line, now and at the peak.
//!
//! Exactly one *cell* counts each live block. A cell covers all blocks of the same stack, layer, owner, phase and
//! classification. Layers, categories and stacks are sums over cells, computed for display. An event therefore changes one
//! cell, and one line of each scope ([`super::line_book`]).
//!
//! A new peak does not copy all cells: it increments `epoch`, and a cell saves its bytes at its first change after that. A
//! cell with an older epoch has not changed since the peak.

use hashbrown::HashMap;
use serde::{Deserialize, Serialize};

use super::category::CategoryBytes;
use super::cell::{Cell, CellKey};
use super::classification::Classification;
use super::line_book::{LineBook, LineMove};
use super::scope::{ByScope, Scope};
use super::symbols::Symbols;

/// Activations of one layer, kept for their high-water mark.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct LayerSlot {
    pub(crate) layer: u32,
    /// Bytes of blocks known to be activations.
    pub(crate) activation: u64,
    pub(crate) activation_peak: u64,
}

/// The ledger.
#[derive(Clone)]
pub(crate) struct Ledger {
    pub(crate) cells: Vec<Cell>,
    by_key: HashMap<CellKey, u32>,
    books: ByScope<LineBook>,
    pub(crate) layers: Vec<LayerSlot>,
    layer_slots: HashMap<u32, u32>,
    pub(crate) epoch: u64,
    /// Live bytes by category.
    pub(crate) by_category: CategoryBytes,
}

impl Default for Ledger {
    fn default() -> Self {
        Self {
            cells: Vec::new(),
            by_key: HashMap::new(),
            books: ByScope::from_fn(LineBook::of),
            layers: Vec::new(),
            layer_slots: HashMap::new(),
            epoch: 0,
            by_category: CategoryBytes::default(),
        }
    }
}

impl Ledger {
    /// Returns the line book of a scope.
    #[inline]
    pub(crate) fn book(&self, scope: Scope) -> &LineBook {
        &self.books[scope]
    }

    pub(crate) fn book_mut(&mut self, scope: Scope) -> &mut LineBook {
        &mut self.books[scope]
    }

    pub(crate) fn books_mut(&mut self) -> impl Iterator<Item = &mut LineBook> {
        self.books.values_mut().iter_mut()
    }

    /// Returns the approximate heap size in bytes.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.cells.capacity() * (size_of::<Cell>() + size_of::<(CellKey, u32)>())
            + self.books.values().iter().map(LineBook::heap_bytes).sum::<usize>()
            + self.layers.capacity() * (size_of::<LayerSlot>() + size_of::<(u32, u32)>())
    }

    /// Returns the cell with this key, and adds it if it is new.
    #[inline]
    pub(crate) fn cell(&mut self, key: CellKey, symbols: &mut Symbols) -> u32 {
        if let Some(cell) = self.by_key.get(&key) {
            return *cell;
        }
        self.new_cell(key, symbols)
    }

    #[cold]
    fn new_cell(&mut self, key: CellKey, symbols: &mut Symbols) -> u32 {
        let lines = self.books.values_mut().each_mut().map(|book| book.slot(key.stack, symbols));
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
            lines,
            layer,
            makes_graph: false,
        });
        self.by_key.insert(key, cell);
        cell
    }

    /// Returns the cell with the line slots that count it now.
    pub(crate) fn with_current_lines(&self, cell: &Cell) -> Cell {
        Cell { lines: self.books.values().each_ref().map(|book| book.line_of(cell)), ..*cell }
    }

    /// Restores the next layer slot of a keyframe.
    pub(crate) fn restore_layer(&mut self, layer: LayerSlot) {
        self.layer_slots.insert(layer.layer, self.layers.len() as u32);
        self.layers.push(layer);
    }

    /// Restores the next cell of a keyframe; `None` if its line or layer is unknown.
    pub(crate) fn restore_cell(&mut self, cell: Cell) -> Option<()> {
        for (book, slot) in std::iter::zip(self.books.values(), cell.lines) {
            book.lines.get(slot as usize)?;
        }
        self.layers.get(cell.layer as usize)?;
        self.by_key.insert(cell.key, self.cells.len() as u32);
        let share = &mut self.by_category[cell.key.classification.category_index()];
        *share = share.saturating_add(cell.bytes);
        self.cells.push(cell);
        Some(())
    }

    /// Returns the bytes of pending blocks that are shown as activations, by layer slot.
    pub(crate) fn pending_activations(&self) -> Vec<u64> {
        let mut pending = vec![0_u64; self.layers.len()];
        for cell in self.cells.iter().filter(|cell| cell.key.classification == Classification::InForward) {
            let bytes = &mut pending[cell.layer as usize];
            *bytes = bytes.saturating_add(cell.bytes);
        }
        pending
    }

    /// Returns the bytes of a cell at the peak.
    pub(crate) fn at_peak(&self, cell: &Cell) -> u64 {
        cell.at_peak(self.epoch)
    }

    /// Resolves all lines of a scope again after definitions changed. Returns the moved bytes.
    pub(crate) fn resolve_again(&mut self, scope: Scope, symbols: &mut Symbols) -> Vec<LineMove> {
        self.books[scope].resolve_again(&mut self.cells, self.epoch, symbols)
    }

    /// Resets the peak of each line and layer to its current bytes.
    pub(crate) fn reset_peaks(&mut self) {
        for book in self.books.values_mut() {
            for line in &mut book.lines {
                line.peak = line.bytes;
            }
        }
        for layer in &mut self.layers {
            layer.activation_peak = layer.activation;
        }
    }

    /// Returns the cell, after saving its bytes at the peak.
    #[inline]
    fn changing(&mut self, cell: u32) -> &mut Cell {
        let cell = &mut self.cells[cell as usize];
        if cell.epoch != self.epoch {
            cell.at_peak = cell.bytes;
            cell.epoch = self.epoch;
        }
        cell
    }

    /// Counts a new block in `cell`.
    #[inline]
    pub(crate) fn allocate(&mut self, cell: u32, bytes: u64, makes_graph: bool) {
        self.count(cell, bytes);
        let counted = &mut self.cells[cell as usize];
        counted.makes_graph |= makes_graph;
        counted.allocations = counted.allocations.saturating_add(1);
        counted.allocated_bytes = counted.allocated_bytes.saturating_add(bytes);
        for (book, slot) in std::iter::zip(self.books.values_mut(), &mut counted.lines) {
            book.count(slot, bytes);
        }
    }

    /// Removes a block from `cell`.
    #[inline]
    pub(crate) fn free(&mut self, cell: u32, bytes: u64) {
        self.discount(cell, bytes);
        for (book, slot) in std::iter::zip(self.books.values_mut(), &mut self.cells[cell as usize].lines) {
            book.discount(slot, bytes);
        }
    }

    /// Moves a block from one cell to another; `lived_at_peak`: at the peak too.
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

    /// Moves a block from one cell to another at the peak only.
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
        let share = cell.key.classification.category_index();
        if cell.key.classification == Classification::Activation {
            let layer = cell.layer;
            let layer = &mut self.layers[layer as usize];
            layer.activation = layer.activation.saturating_add(bytes);
            layer.activation_peak = layer.activation_peak.max(layer.activation);
        }
        self.by_category[share] = self.by_category[share].saturating_add(bytes);
    }

    #[inline]
    fn discount(&mut self, cell: u32, bytes: u64) {
        let cell = self.changing(cell);
        cell.bytes = cell.bytes.saturating_sub(bytes);
        cell.blocks = cell.blocks.saturating_sub(1);
        let share = cell.key.classification.category_index();
        if cell.key.classification == Classification::Activation {
            let layer = cell.layer;
            let layer = &mut self.layers[layer as usize];
            layer.activation = layer.activation.saturating_sub(bytes);
        }
        self.by_category[share] = self.by_category[share].saturating_sub(bytes);
    }
}
