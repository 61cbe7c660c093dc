//! Views of one device: its cells, grouped.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::HashMap;

use super::blocks::Block;
use super::category::Category;
use super::cell::Cell;
use super::device::DeviceState;
use super::driver_memory::{HeldMemory, SegmentRange};
use super::history_views::{StepView, Timeline, TimelinePoint};
use super::line::Line;
use super::private_pools;
use super::scope::Scope;
use super::symbols::{Owner, Symbols};
use super::tags::{OwnedBytes, TaggedTensor};
use super::tensor_names::TensorName;
use super::views::{
    AttributionView, BlockLayer, BlockView, CategoryView, DeviceView, LayerView, LineView, PrivatePoolView, RangePath,
    RangeView, Segment, SegmentMap, StackView, TensorView, TotalsView,
};
use memlab_format::record::{Phase, TagCategory};

/// Row of the layers view: the outermost module and the name in it; `None`: no layer.
pub(crate) type LayerRow = (u32, Option<Arc<str>>);

/// Returns the row that counts a cell's blocks: that of their owner by tags, else of the layer that allocated them.
pub(crate) fn holder(cell: &Cell, symbols: &Symbols) -> LayerRow {
    block_layer(cell.key.owner, cell.key.layer, symbols)
}

pub(crate) fn block_layer(owner: u32, layer: u32, symbols: &Symbols) -> LayerRow {
    match symbols.owner(owner) {
        Some(owner) => owner_row(owner, symbols),
        None => layer_row(layer, symbols),
    }
}

fn owner_row(owner: &Owner, symbols: &Symbols) -> LayerRow {
    (symbols.root_of(owner.root), Some(owner.name.clone()))
}

pub(crate) fn layer_row(layer: u32, symbols: &Symbols) -> LayerRow {
    match symbols.module_layer(layer) {
        0 => (0, None),
        layer => (symbols.root_of(layer), symbols.layer_name(layer)),
    }
}

/// Returns the class of a row.
///
/// The row of an outermost module has the module's class, not that of unnamed layers in it.
pub(crate) fn class_of_row(
    root: u32,
    name: Option<&Arc<str>>,
    class: Option<Arc<str>>,
    symbols: &Symbols,
) -> Option<Arc<str>> {
    if name.is_some_and(|name| name.is_empty()) { symbols.layer_class(root) } else { class }
}

/// Sorts processes by bytes.
fn largest_first(mut processes: Vec<(u32, u64)>) -> Vec<(u32, u64)> {
    processes.sort_by_key(|(pid, bytes)| (std::cmp::Reverse(*bytes), *pid));
    processes
}

impl DeviceState {
    pub(crate) fn view(&self, index: i32) -> DeviceView {
        let (driver, peak) = (&self.driver.totals, &self.totals.peak);
        let info = self.info.as_ref();
        DeviceView {
            index,
            name: info.map(|info| info.name.clone()).unwrap_or_default(),
            bus_id: info.and_then(|info| info.bus_id.clone()),
            total_bytes: info.map_or(driver.total, |info| info.total_bytes),
            allocated_bytes: self.totals.allocated,
            reserved_bytes: driver.reserved,
            used_bytes: self.used(),
            used_is_known: driver.sampled,
            host_bytes: driver.moved,
            host_bytes_at_peak: peak.moved,
            peak_host_bytes: driver.peak_moved.max(driver.moved),
            link_bytes_per_second: self.link.map(|link| link.bytes_per_second),
            limit_bytes: self.limit.as_ref().and_then(|limit| limit.bytes),
            spills: self.limit.as_ref().is_some_and(|limit| limit.on_limit == "spill"),
            ooms: self.totals.ooms,
            others: largest_first(self.others.most.iter().map(|(pid, bytes)| (*pid, *bytes)).collect()),
            process_is_known: driver.process_known,
            peak_allocated_bytes: peak.allocated,
            peak_reserved_bytes: driver.peak_reserved,
            peak_used_bytes: self.totals.peak_used.max(peak.used()),
            reserved_bytes_at_peak: peak.reserved,
            used_bytes_at_peak: peak.used(),
            peak_time: peak.time,
            peak_event: peak.event,
            peak_step: peak.step,
            other_array_bytes: driver.arrays,
            other_array_bytes_at_peak: peak.arrays,
            private_reserved_bytes_at_peak: peak.private_reserved,
            private_allocated_bytes_at_peak: peak.private_allocated,
            segments_at_peak: peak.segments,
            segments: driver.segments,
            live_blocks: self.blocks.len() as u64,
            allocations: self.totals.allocations,
            async_allocations: self.totals.async_blocks,
        }
    }

    pub(crate) fn lines(&self, scope: Scope, symbols: &Symbols) -> Vec<LineView> {
        let book = self.ledger.book(scope);
        let slots = book.lines.iter();
        let mut views: Vec<LineView> = slots
            .map(|slot| LineView {
                line: symbols.line(slot.id).cloned(),
                is_compiled: symbols.line(slot.id).is_some_and(|line| symbols.is_compiled(line)),
                peak_live_bytes: slot.peak,
                ..LineView::default()
            })
            .collect();
        for cell in &self.ledger.cells {
            let view = &mut views[book.line_of(cell) as usize];
            let at_peak = self.ledger.at_peak(cell);
            add(&mut view.allocations, cell.allocations);
            add(&mut view.allocated_bytes, cell.allocated_bytes);
            add(&mut view.live_bytes, cell.bytes);
            add(&mut view.live_blocks, cell.blocks);
            add(&mut view.live_bytes_at_peak, at_peak);
            if cell.key.phase == Phase::Backward {
                add(&mut view.backward_bytes, cell.bytes);
                add(&mut view.backward_bytes_at_peak, at_peak);
            }
        }
        // Merges the slots of stacks without a known line into one row.
        let mut known: HashMap<Option<Arc<Line>>, usize> = HashMap::new();
        let mut joined: Vec<LineView> = Vec::with_capacity(views.len());
        let is_met = |view: &LineView| {
            // The live bytes are positive without the others if definitions of one stack contradict each other.
            [view.allocations, view.peak_live_bytes, view.live_bytes, view.live_bytes_at_peak].iter().any(|it| *it > 0)
        };
        for view in views.into_iter().filter(is_met) {
            match known.get(&view.line) {
                None => {
                    known.insert(view.line.clone(), joined.len());
                    joined.push(view);
                }
                Some(index) => join_lines(&mut joined[*index], &view),
            }
        }
        joined.sort_by(|a, b| {
            let (of_a, of_b) = ((a.live_bytes_at_peak, a.peak_live_bytes), (b.live_bytes_at_peak, b.peak_live_bytes));
            of_b.cmp(&of_a).then_with(|| a.line.cmp(&b.line))
        });
        joined
    }

    pub(crate) fn layers(&self, symbols: &Symbols) -> Vec<LayerView> {
        let mut rows: BTreeMap<LayerRow, LayerView> = BTreeMap::new();
        // Names are resolved once per layer, not once per cell.
        let mut layer_rows: HashMap<u32, LayerRow> = HashMap::new();
        let mut row_of = |layer: u32| layer_rows.entry(layer).or_insert_with(|| layer_row(layer, symbols)).clone();
        for cell in &self.ledger.cells {
            let asked = rows.entry(row_of(cell.key.layer)).or_default();
            match cell.key.phase {
                Phase::Forward => add(&mut asked.forward_bytes, cell.allocated_bytes),
                Phase::Backward => add(&mut asked.backward_bytes, cell.allocated_bytes),
                Phase::Other | Phase::Optimizer => {}
            }
            if asked.class.is_none() {
                asked.class = symbols.layer_class(cell.key.layer);
            }
            let holds = match symbols.owner(cell.key.owner) {
                Some(owner) => rows.entry(owner_row(owner, symbols)).or_default(),
                None => asked,
            };
            add(&mut holds.live_bytes, cell.bytes);
            let at_peak = self.ledger.at_peak(cell);
            add(&mut holds.live_bytes_at_peak, at_peak);
            add(&mut holds.categories_at_peak[cell.key.classification.category() as usize], at_peak);
        }
        for (layer, pending) in std::iter::zip(&self.ledger.layers, self.ledger.pending_activations()) {
            // Live pending blocks count in the category that is shown for them.
            let most = layer.activation_peak.max(layer.activation.saturating_add(pending));
            add(&mut rows.entry(row_of(layer.layer)).or_default().activation_bytes, most);
        }
        for (owner, OwnedBytes { peak, .. }) in &self.tags.owners {
            let Some(owner) = symbols.owner(*owner) else { continue };
            let row = rows.entry(owner_row(owner, symbols)).or_default();
            add(&mut row.parameter_bytes, peak[TagCategory::Parameter as usize]);
            add(&mut row.gradient_bytes, peak[TagCategory::Gradient as usize]);
            add(&mut row.optimizer_state_bytes, peak[TagCategory::OptimizerState as usize]);
            add(&mut row.buffer_bytes, peak[TagCategory::Buffer as usize]);
        }
        let root_names = symbols.root_names(&rows.keys().map(|(root, _)| *root).collect());
        let named = |((root, name), view): (LayerRow, LayerView)| LayerView {
            root,
            root_class: symbols.layer_class(root),
            root_name: root_names.get(&root).cloned(),
            class: class_of_row(root, name.as_ref(), view.class.clone(), symbols),
            name,
            ..view
        };
        // Rows are empty if their modules turned out to be parts of others.
        rows.into_iter().filter(|(_, view)| *view != LayerView::default()).map(named).collect()
    }

    pub(crate) fn ranges(&self, symbols: &Symbols) -> Vec<RangeView> {
        let mut rows: BTreeMap<RangePath, RangeView> = BTreeMap::new();
        let mut paths: HashMap<u32, RangePath> = HashMap::new();
        for cell in &self.ledger.cells {
            let path = paths.entry(cell.key.range).or_insert_with(|| symbols.range_path(cell.key.range));
            let view = rows.entry(path.clone()).or_insert_with(|| RangeView::of(path.clone()));
            let at_peak = self.ledger.at_peak(cell);
            add(&mut view.live_bytes, cell.bytes);
            add(&mut view.live_blocks, cell.blocks);
            add(&mut view.live_bytes_at_peak, at_peak);
            add(&mut view.allocations, cell.allocations);
            add(&mut view.allocated_bytes, cell.allocated_bytes);
            add(&mut view.categories_at_peak[cell.key.classification.category() as usize], at_peak);
        }
        // A program without ranges gets no rows, rather than one row with all its memory.
        let has_ranges = rows.keys().any(|path| !path.is_empty());
        if has_ranges { rows.into_values().collect() } else { Vec::new() }
    }

    pub(crate) fn categories(&self) -> [CategoryView; Category::COUNT] {
        let mut views = Category::ALL.map(|category| CategoryView { category, bytes: 0, bytes_at_peak: 0 });
        for cell in &self.ledger.cells {
            let view = &mut views[cell.key.classification.category() as usize];
            add(&mut view.bytes, cell.bytes);
            add(&mut view.bytes_at_peak, self.ledger.at_peak(cell));
        }
        let (driver, peak) = (&self.driver.totals, &self.totals.peak);
        let mut rest = |category: Category, bytes: u64, bytes_at_peak: u64| {
            let view = &mut views[category as usize];
            add(&mut view.bytes, bytes);
            add(&mut view.bytes_at_peak, bytes_at_peak);
        };
        let of_libraries =
            |libraries: u64, nccl: u64, arrays: u64| libraries.saturating_sub(nccl).saturating_sub(arrays);
        rest(
            Category::Workspace,
            of_libraries(driver.libraries, driver.nccl, driver.arrays),
            of_libraries(peak.libraries, peak.nccl, peak.arrays),
        );
        rest(Category::Nccl, driver.nccl, peak.nccl);
        rest(Category::Cached, self.torch() - self.totals.allocated, peak.torch() - peak.allocated);
        rest(Category::Context, driver.context, peak.context);
        rest(Category::OtherProcesses, driver.other_processes, peak.other_processes);
        views
    }

    pub(crate) fn stacks(&self) -> Vec<StackView> {
        let mut views: Vec<StackView> = self.stacks_by(|_| 0).into_values().collect();
        views.sort_unstable_by_key(|view| view.stack);
        views
    }

    pub(crate) fn stacks_in_ranges(&self) -> Vec<(u32, StackView)> {
        let stacks = self.stacks_by(|cell| cell.key.range).into_iter();
        let mut views: Vec<(u32, StackView)> = stacks.map(|((range, _), view)| (range, view)).collect();
        views.sort_unstable_by_key(|(range, view)| (*range, view.stack));
        views
    }

    /// Sums cells by `group` and by stack.
    fn stacks_by(&self, group: impl Fn(&Cell) -> u32) -> HashMap<(u32, u32), StackView> {
        let mut stacks: HashMap<(u32, u32), StackView> = HashMap::new();
        for cell in &self.ledger.cells {
            let view = stacks.entry((group(cell), cell.key.stack)).or_default();
            view.stack = cell.key.stack;
            add(&mut view.allocations, cell.allocations);
            add(&mut view.allocated_bytes, cell.allocated_bytes);
            add(&mut view.live_bytes, cell.bytes);
            add(&mut view.live_blocks, cell.blocks);
            add(&mut view.live_bytes_at_peak, self.ledger.at_peak(cell));
        }
        stacks
    }

    pub(crate) fn timeline_view(&self) -> Timeline {
        Timeline { categories: self.category_timeline.view(&self.ledger.by_category), ..self.timeline.view() }
    }

    pub(crate) fn attributions(&self, symbols: &Symbols, scope: Scope) -> Vec<AttributionView> {
        type Key = (Option<Arc<Line>>, LayerRow, Category);
        let book = self.ledger.book(scope);
        let mut sums: HashMap<Key, (u64, u64)> = HashMap::new();
        let mut classes: HashMap<LayerRow, Arc<str>> = HashMap::new();
        let mut layer_rows: HashMap<u32, LayerRow> = HashMap::new();
        for cell in &self.ledger.cells {
            let asked = layer_rows.entry(cell.key.layer).or_insert_with(|| {
                let row = layer_row(cell.key.layer, symbols);
                classes.extend(symbols.layer_class(cell.key.layer).map(|class| (row.clone(), class)));
                row
            });
            let row = match symbols.owner(cell.key.owner) {
                Some(owner) => owner_row(owner, symbols),
                None => asked.clone(),
            };
            let key = (
                symbols.line(book.lines[book.line_of(cell) as usize].id).cloned(),
                row,
                cell.key.classification.category(),
            );
            let (live_bytes, at_peak) = sums.entry(key).or_default();
            add(live_bytes, cell.bytes);
            add(at_peak, self.ledger.at_peak(cell));
        }
        let view = |((line, (root, name), category), sums): (Key, (u64, u64))| AttributionView {
            line,
            class: match name.as_deref() {
                Some("") => symbols.layer_class(root),
                _ => classes.get(&(root, name.clone())).cloned(),
            },
            layer: BlockLayer { root, name },
            category,
            live_bytes: sums.0,
            live_bytes_at_peak: sums.1,
        };
        let mut views: Vec<AttributionView> = sums.into_iter().map(view).collect();
        views.sort_by(|a, b| (&a.line, &a.layer, a.category).cmp(&(&b.line, &b.layer, b.category)));
        views
    }

    fn block_view(&self, block: &Block) -> BlockView {
        self.view_in_cell(block.cell, block.address, block.bytes, block.time)
    }

    /// Returns the view of a block counted in a cell.
    fn view_in_cell(&self, cell: u32, address: u64, bytes: u64, time: u64) -> BlockView {
        let key = self.ledger.cells[cell as usize].key;
        BlockView {
            address,
            bytes,
            category: key.classification.category(),
            stack: key.stack,
            layer: key.layer,
            owner: key.owner,
            range: key.range,
            phase: key.phase,
            time,
        }
    }

    pub(crate) fn block(&self, address: u64) -> Option<BlockView> {
        self.blocks.find(address).map(|slot| self.block_view(self.blocks.get(slot)))
    }

    /// Returns the most recently freed block, if it was at this address.
    pub(crate) fn freed(&self, address: u64) -> Option<BlockView> {
        self.freed.as_ref().filter(|block| block.address == address).map(|block| self.block_view(block))
    }

    pub(crate) fn block_if_freed(&self, address: u64) -> Option<BlockView> {
        let block = self.blocks.get(self.blocks.find(address)?);
        let classification = self.ledger.cells[block.cell as usize].key.classification;
        Some(BlockView { category: classification.if_freed().category(), ..self.block_view(block) })
    }

    pub(crate) fn block_views(&self) -> Vec<BlockView> {
        self.blocks.sorted().into_iter().map(|block| self.block_view(block)).collect()
    }

    pub(crate) fn arrays(&self) -> Vec<BlockView> {
        let view = |held: &HeldMemory| Some(self.view_in_cell(held.cell?, held.address, held.bytes, 0));
        let mut arrays: Vec<BlockView> = self.driver.held.values().filter_map(view).collect();
        arrays.sort_unstable_by_key(|array| array.address);
        arrays
    }

    /// Returns the tagged tensors in the block at an address, by their own addresses.
    pub(crate) fn tensors_in(&self, block: u64, symbols: &Symbols) -> Vec<TensorView> {
        let Some(tags) = self.blocks.find(block).and_then(|slot| self.tags.blocks.get(&slot)) else {
            return Vec::new();
        };
        let view = |(address, tensor): (&u64, &TaggedTensor)| {
            let TensorName { name, shard } = symbols.tensor_names.get(tensor.name).cloned().unwrap_or_default();
            let shard = (!shard.is_empty()).then_some(shard);
            TensorView { address: *address, bytes: tensor.bytes, category: tensor.category, name, shard }
        };
        let here = tags.tensors.iter().filter(|(_, tensor)| !tensor.has_moved());
        let mut tensors: Vec<TensorView> = here.map(view).collect();
        tensors.sort_unstable_by_key(|tensor| tensor.address);
        tensors
    }

    #[inline]
    pub(crate) fn peaks_view(&self) -> TotalsView {
        TotalsView {
            allocated_bytes: self.totals.peak.allocated,
            reserved_bytes: self.driver.totals.peak_reserved,
            used_bytes: self.totals.peak_used.max(self.totals.peak.used()),
        }
    }

    #[inline]
    pub(crate) fn totals_view(&self) -> TotalsView {
        TotalsView {
            allocated_bytes: self.totals.allocated,
            reserved_bytes: self.driver.totals.reserved,
            used_bytes: self.used(),
        }
    }

    /// Returns the approximate heap size in bytes.
    pub(crate) fn heap_bytes(&self) -> usize {
        let points = self.timeline.points.list.capacity() * size_of::<TimelinePoint>();
        let steps = self.steps.list.capacity() * size_of::<StepView>();
        self.blocks.heap_bytes() + self.ledger.heap_bytes() + points + steps + self.driver.held.len() * 64
    }

    pub(crate) fn segments(&self) -> SegmentMap {
        let mut map = SegmentMap::default();
        let mut blocks = self.blocks.sorted().into_iter().peekable();
        for SegmentRange { address, bytes, is_expandable, pool } in self.driver.segment_ranges() {
            let end = address.saturating_add(bytes);
            let mut segment = Segment { address, bytes, is_expandable, pool, ..Segment::default() };
            let mut free_from = address;
            while let Some(block) = blocks.next_if(|block| block.address < end) {
                if block.address < address {
                    map.stray_blocks += 1;
                    continue;
                }
                hole(&mut segment, free_from, block.address);
                free_from = free_from.max(block.address.saturating_add(block.bytes));
                segment.blocks.push(self.block_view(block));
            }
            hole(&mut segment, free_from, end);
            add(&mut map.reserved_bytes, bytes);
            add(&mut map.free_bytes, segment.free_bytes);
            map.largest_free_bytes = map.largest_free_bytes.max(segment.largest_free_bytes);
            if pool == 0 {
                map.largest_common_free_bytes = map.largest_common_free_bytes.max(segment.largest_free_bytes);
            } else {
                add(&mut map.private_free_bytes, segment.free_bytes);
            }
            map.segments.push(segment);
        }
        map.stray_blocks += blocks.count() as u64;
        if map.free_bytes > 0 {
            map.fragmentation_percent = 100.0 * (1.0 - map.largest_free_bytes as f64 / map.free_bytes as f64);
        }
        map
    }

    /// Returns the private pools of CUDA graphs with segments or graphs, largest first.
    pub(crate) fn private_pools(&self) -> Vec<PrivatePoolView> {
        let mut pools: BTreeMap<u64, PrivatePoolView> = BTreeMap::new();
        let graphs = &self.driver.private;
        for (pool, captured) in graphs.pools() {
            let view = pools.entry(pool).or_default();
            view.id = captured.first().map(|graph| graph.pool);
            view.captured = captured.len() as u64;
            view.graphs = captured.iter().filter(|graph| !graph.is_gone).count() as u64;
            view.stacks = private_pools::stacks(&captured);
        }
        if self.driver.totals.private_reserved > 0 {
            for segment in self.segments().segments.iter().filter(|segment| segment.pool != 0) {
                let view = pools.entry(segment.pool).or_default();
                view.segments += 1;
                add(&mut view.reserved_bytes, segment.bytes);
                add(&mut view.free_bytes, segment.free_bytes);
            }
        }
        let named = pools.into_iter().map(|(pool, view)| PrivatePoolView { pool, ..view });
        let mut views: Vec<PrivatePoolView> = named.filter(|view| view.graphs > 0 || view.reserved_bytes > 0).collect();
        views.sort_by_key(|view| (std::cmp::Reverse(view.reserved_bytes), view.pool));
        views
    }
}

/// Adds the free range between two addresses, if any.
fn hole(segment: &mut Segment, from: u64, to: u64) {
    let bytes = to.saturating_sub(from);
    add(&mut segment.free_bytes, bytes);
    segment.largest_free_bytes = segment.largest_free_bytes.max(bytes);
}

fn join_lines(into: &mut LineView, other: &LineView) {
    into.is_compiled |= other.is_compiled;
    add(&mut into.allocations, other.allocations);
    add(&mut into.allocated_bytes, other.allocated_bytes);
    add(&mut into.live_bytes, other.live_bytes);
    add(&mut into.live_blocks, other.live_blocks);
    add(&mut into.live_bytes_at_peak, other.live_bytes_at_peak);
    add(&mut into.peak_live_bytes, other.peak_live_bytes);
    add(&mut into.backward_bytes, other.backward_bytes);
    add(&mut into.backward_bytes_at_peak, other.backward_bytes_at_peak);
}

fn add(to: &mut u64, bytes: u64) {
    *to = to.saturating_add(bytes);
}
