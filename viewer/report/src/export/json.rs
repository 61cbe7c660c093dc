//! All data of one moment as JSON: a contract with scripts, like the report's.
//!
//! Keys are added, never renamed or removed. Keys in both have the same names.

use std::collections::HashMap;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use memlab_trace::record::Phase;
use memlab_trace::{BlockView, HOST, Line, Model, RangePath, ResolvedSnapshot, Scope, TensorView};
use serde::Serialize;

use memlab_base::holdings::{HeldLine, Holdings};
use memlab_base::json::parts::{CodeLine, DriverCall, Layer, LineResolver, Process, Range, Row, StepRow, Trace, steps};
use memlab_base::json::write_compact;
use memlab_base::moment::LoadedMoment;

#[derive(Serialize)]
struct Export {
    trace: Trace,
    process: Process,
    moment: At,
    devices: Vec<Device>,
    categories: Vec<CategoryRow>,
    lines: Vec<Row<CodeLine, LineFigures>>,
    /// The same memory by the innermost lines of the user's code or of a library.
    library_lines: Vec<Row<CodeLine, LineFigures>>,
    /// The more informative list or the requested one: `lines` or `library_lines`.
    lines_shown: &'static str,
    layers: Vec<Row<Layer, Figures>>,
    ranges: Vec<Row<Range, Figures>>,
    steps: Vec<StepRow>,
    frames: Vec<CodeLine>,
    /// Innermost frame first, as indexes into `frames`.
    stacks: Vec<Vec<usize>>,
    segments: Vec<SegmentRow>,
    /// Blocks outside all known segments.
    stray_blocks: Vec<BlockRow>,
    driver: Vec<Row<DriverCall, DriverFigures>>,
    warnings: Vec<String>,
}

/// The displayed moment.
#[derive(Serialize)]
struct At {
    /// The moment as requested: `peak`, `end`, `oom:1`, `step:12`, `12.5s`.
    at: String,
    /// Time of the latest event until then.
    time_ns: u64,
    events: u64,
    steps_ended: u64,
}

#[derive(Serialize)]
struct Device {
    index: i32,
    name: String,
    total_bytes: u64,
    allocated_bytes: u64,
    reserved_bytes: u64,
    used_bytes: u64,
    /// Part of the process's device memory that is in host memory.
    host_bytes: u64,
    used_is_known: bool,
    process_is_known: bool,
    live_blocks: usize,
    segments: u64,
    free_bytes_in_segments: u64,
    largest_free_block_bytes: u64,
    fragmentation_percent: f64,
    /// Bytes allocated outside any layer, also a row of `layers`.
    outside_layers_bytes: u64,
}

#[derive(Serialize)]
struct CategoryRow {
    device: i32,
    name: &'static str,
    bytes: u64,
}

#[derive(Serialize)]
struct LineFigures {
    live_bytes: u64,
    backward_bytes: u64,
}

/// Figures of a layer or a range.
#[derive(Serialize)]
struct Figures {
    live_bytes: u64,
}

#[derive(Serialize)]
struct SegmentRow {
    device: i32,
    address: u64,
    bytes: u64,
    is_expandable: bool,
    free_bytes: u64,
    largest_free_block_bytes: u64,
    /// By address; the memory between them is free.
    blocks: Vec<BlockRow>,
}

#[derive(Serialize)]
struct BlockRow {
    device: i32,
    address: u64,
    bytes: u64,
    category: &'static str,
    phase: Phase,
    layer: Option<Arc<str>>,
    /// Names of the enclosing ranges and its range, outermost first; absent: none.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    range: RangePath,
    /// Index into `stacks`; null: no Python frame.
    stack: Option<usize>,
    time_ns: u64,
    age_ns: u64,
    /// Known parameters, gradients, optimizer state and buffers in the block; absent: none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tensors: Vec<TensorRow>,
}

/// A tensor in a block.
#[derive(Serialize)]
struct TensorRow {
    address: u64,
    /// Bytes without rounding; of a sharded tensor, those of this rank's shard.
    bytes: u64,
    category: &'static str,
    /// Qualified name of the parameter; for optimizer state, followed by `:` and the key.
    name: String,
    /// Sharding, such as `Shard(0)/4 on dp`; null: not sharded.
    shard: Option<String>,
}

#[derive(Serialize)]
struct DriverFigures {
    live_bytes: u64,
    live_allocations: u64,
}

/// Writes the moment as JSON on one line, of one device or of all. Control characters in its texts are escaped.
///
/// # Errors
///
/// Errors of `out`.
pub fn write(out: &mut dyn Write, path: &Path, loaded: &LoadedMoment, device: Option<i32>) -> io::Result<()> {
    let ResolvedSnapshot { model: moment, final_model: whole, .. } = &loaded.snapshot;
    let resolver = LineResolver::of_run(whole);
    let indexes: Vec<i32> = moment.devices().iter().map(|view| view.index).collect();
    let indexes: Vec<i32> = indexes.into_iter().filter(|index| device.is_none_or(|device| device == *index)).collect();
    let held: Vec<(i32, Holdings)> =
        indexes.iter().map(|index| (*index, Holdings::at_moment(&loaded.snapshot, *index))).collect();
    let mut stacks = Stacks {
        whole,
        resolver: &resolver,
        frames: Vec::new(),
        known: HashMap::new(),
        stacks: Vec::new(),
        ids: HashMap::new(),
    };
    let (mut segments, mut stray_blocks) = (Vec::new(), Vec::new());
    for index in &indexes {
        let (rows, strays) = segment_rows(&loaded.snapshot, *index, &mut stacks);
        segments.extend(rows);
        stray_blocks.extend(strays);
    }
    let (frames, stacks) = (stacks.frames, stacks.stacks);
    let export = Export {
        trace: Trace::of(path, whole, &loaded.through.skipped, loaded.through.truncated),
        process: Process::of(whole),
        moment: At {
            at: loaded.moment.typed(),
            time_ns: moment.time(),
            events: moment.events(),
            steps_ended: moment.steps_ended(),
        },
        devices: held.iter().filter_map(|(index, held)| device_row(&loaded.snapshot, *index, held)).collect(),
        categories: held
            .iter()
            .flat_map(|(device, held)| {
                held.categories.iter().map(|(category, bytes)| CategoryRow {
                    device: *device,
                    name: category.as_str(),
                    bytes: *bytes,
                })
            })
            .collect(),
        lines: line_rows(&held, Scope::Users, &resolver),
        library_lines: line_rows(&held, Scope::Libraries, &resolver),
        lines_shown: whole.scope().as_str(),
        layers: held.iter().flat_map(|(device, held)| layer_rows(*device, held)).collect(),
        ranges: held
            .iter()
            .flat_map(|(device, held)| {
                held.ranges.iter().map(|range| Row {
                    device: *device,
                    of: Range { path: range.path.clone() },
                    figures: Figures { live_bytes: range.bytes },
                })
            })
            .collect(),
        steps: steps(moment),
        frames,
        stacks,
        segments,
        stray_blocks,
        driver: indexes.iter().copied().chain([HOST]).flat_map(|device| driver_rows(moment, device)).collect(),
        warnings: whole.warnings().to_vec(),
    };
    write_compact(out, &export)
}

fn device_row(snapshot: &ResolvedSnapshot, index: i32, held: &Holdings) -> Option<Device> {
    let view = snapshot.model.device(index)?;
    let known = snapshot.final_model.device(index).unwrap_or_default();
    let map = snapshot.model.segments(index);
    Some(Device {
        index,
        name: known.name,
        total_bytes: known.total_bytes,
        allocated_bytes: view.allocated_bytes,
        reserved_bytes: view.reserved_bytes,
        used_bytes: held.used_bytes,
        host_bytes: snapshot.host_bytes(index),
        used_is_known: known.used_is_known,
        process_is_known: known.process_is_known,
        live_blocks: snapshot.blocks.iter().filter(|(on, _)| *on == index).count(),
        segments: view.segments,
        free_bytes_in_segments: map.free_bytes,
        largest_free_block_bytes: map.largest_free_bytes,
        fragmentation_percent: map.fragmentation_percent,
        outside_layers_bytes: held
            .layers
            .iter()
            .filter(|layer| layer.layer.name.is_none())
            .map(|layer| layer.bytes)
            .sum(),
    })
}

fn line_rows(held: &[(i32, Holdings)], scope: Scope, resolver: &LineResolver) -> Vec<Row<CodeLine, LineFigures>> {
    let of_device = |(device, held): &(i32, Holdings)| {
        let row = |line: &HeldLine| Row {
            device: *device,
            of: resolver.of(line.line.as_deref()),
            figures: LineFigures { live_bytes: line.bytes, backward_bytes: line.backward_bytes },
        };
        held.lines[scope].iter().map(row).collect::<Vec<_>>()
    };
    held.iter().flat_map(of_device).collect()
}

fn layer_rows(device: i32, held: &Holdings) -> impl Iterator<Item = Row<Layer, Figures>> {
    let (layers, outside): (Vec<_>, Vec<_>) = held.layers.iter().partition(|layer| layer.layer.name.is_some());
    layers.into_iter().chain(outside).map(move |layer| Row {
        device,
        of: layer.layer.clone().into(),
        figures: Figures { live_bytes: layer.bytes },
    })
}

/// Tensors in a block.
fn tensor_rows(snapshot: &ResolvedSnapshot, device: i32, block: u64) -> Vec<TensorRow> {
    let row = |tensor: &TensorView| TensorRow {
        address: tensor.address,
        bytes: tensor.bytes,
        category: tensor.category.as_str(),
        name: tensor.name.to_string(),
        shard: tensor.shard.as_ref().map(|shard| shard.to_string()),
    };
    snapshot.tensors.get(&(device, block)).into_iter().flatten().map(row).collect()
}

fn segment_rows(snapshot: &ResolvedSnapshot, device: i32, stacks: &mut Stacks<'_>) -> (Vec<SegmentRow>, Vec<BlockRow>) {
    let now = snapshot.model.time();
    let mut row = |block: &BlockView| BlockRow {
        device,
        address: block.address,
        bytes: block.bytes,
        category: block.category.as_str(),
        phase: block.phase,
        layer: snapshot.final_model.layer_of(block).name,
        range: snapshot.final_model.range_path(block.range),
        stack: stacks.index(block.stack),
        time_ns: block.time,
        age_ns: now.saturating_sub(block.time),
        tensors: tensor_rows(snapshot, device, block.address),
    };
    let mut blocks = snapshot.blocks.iter().filter(|(on, _)| *on == device).map(|(_, block)| block).peekable();
    let mut strays = Vec::new();
    let mut rows = Vec::new();
    for segment in snapshot.model.segments(device).segments {
        while let Some(block) = blocks.next_if(|block| block.address < segment.address) {
            strays.push(row(block));
        }
        let end = segment.address.saturating_add(segment.bytes);
        let within = std::iter::from_fn(|| blocks.next_if(|block| block.address < end)).map(&mut row).collect();
        rows.push(SegmentRow {
            device,
            address: segment.address,
            bytes: segment.bytes,
            is_expandable: segment.is_expandable,
            free_bytes: segment.free_bytes,
            largest_free_block_bytes: segment.largest_free_bytes,
            blocks: within,
        });
    }
    strays.extend(blocks.map(row));
    (rows, strays)
}

fn driver_rows(moment: &Model, device: i32) -> impl Iterator<Item = Row<DriverCall, DriverFigures>> {
    moment.driver_memory(device).into_iter().map(move |view| {
        let figures = DriverFigures { live_bytes: view.live_bytes, live_allocations: view.live_allocations };
        Row { device, of: view.into(), figures }
    })
}

/// The stacks of the export, each once.
struct Stacks<'m> {
    whole: &'m Model,
    resolver: &'m LineResolver,
    frames: Vec<CodeLine>,
    known: HashMap<Arc<Line>, usize>,
    stacks: Vec<Vec<usize>>,
    ids: HashMap<u32, Option<usize>>,
}

impl Stacks<'_> {
    fn index(&mut self, stack: u32) -> Option<usize> {
        if let Some(index) = self.ids.get(&stack) {
            return *index;
        }
        let frames: Vec<usize> = self.whole.frames(stack).into_iter().map(|frame| self.frame(frame)).collect();
        let index = (!frames.is_empty()).then_some(self.stacks.len());
        if index.is_some() {
            self.stacks.push(frames);
        }
        self.ids.insert(stack, index);
        index
    }

    fn frame(&mut self, frame: Arc<Line>) -> usize {
        *self.known.entry(frame).or_insert_with_key(|frame| {
            self.frames.push(self.resolver.of(Some(frame)));
            self.frames.len() - 1
        })
    }
}
