//! A moment and its history as a snapshot for PyTorch's own tools: `python -m torch.cuda._memory_viz` and
//! <https://pytorch.org/memory_viz>.
//!
//! The format is that of `torch.cuda.memory._snapshot()` in PyTorch 2.1 and later. Data unknown to memlab is filled in:
//! streams are 0, and the requested size equals the allocated size. Each block of the cudaMallocAsync backend is a
//! segment.

mod events;

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::Arc;

use memlab_trace::{BlockView, Line, Model, ResolvedSnapshot, Segment};

pub use events::Events;

use super::pickle::{Memo, Pickler};
use events::{Action, Event};
use memlab_base::moment::LoadedMoment;
use memlab_base::ranges::range_name;
use memlab_base::text::clean;

/// Size of segments in the pool for small blocks.
const SMALL_SEGMENT: u64 = 2 << 20;
/// Size of the largest block from that pool.
const MAX_SMALL_BLOCK: u64 = 1 << 20;

/// Writes the snapshot of one device or of all.
///
/// # Errors
///
/// Errors of `out`.
pub fn write(out: &mut dyn Write, loaded: &LoadedMoment, events: &Events, device: Option<i32>) -> io::Result<()> {
    let snapshot = &loaded.snapshot;
    let indexes: Vec<i32> = snapshot.model.devices().iter().map(|view| view.index).collect();
    let wanted = |index: i32| device.is_none_or(|device| device == index);
    let segments = indexes.iter().filter(|index| wanted(**index));
    let segments: Vec<(i32, Segment)> =
        segments.flat_map(|index| segments_of(snapshot, *index).into_iter().map(|segment| (*index, segment))).collect();
    let mut traces: Vec<Vec<&Event>> = vec![Vec::new(); indexes.iter().max().map_or(0, |last| *last as usize + 1)];
    for event in events.iter().filter(|event| wanted(event.device)) {
        if let Some(trace) = usize::try_from(event.device).ok().and_then(|index| traces.get_mut(index)) {
            trace.push(event);
        }
    }
    let is_expandable = segments.iter().any(|(_, segment)| segment.is_expandable);
    let start_ns = snapshot.final_model.header().map_or(0, |header| header.start_unix_ns);
    let mut stacks = Stacks { whole: &snapshot.final_model, stacks: HashMap::new(), frames: HashMap::new() };

    let mut pickler = Pickler::begin(out)?;
    pickler.dictionary(|p| {
        p.text("segments")?;
        p.list(&segments, |p, (device, segment)| write_segment(p, &mut stacks, *device, segment))?;
        p.text("device_traces")?;
        p.list(&traces, |p, trace| p.list(trace, |p, event| write_event(p, &mut stacks, start_ns, event)))?;
        // The settings that memlab knows.
        p.text("allocator_settings")?;
        p.dictionary(|p| {
            p.text("expandable_segments")?;
            p.boolean(is_expandable)
        })?;
        p.text("external_annotations")?;
        p.list([(); 0], |_, ()| Ok(()))?;
        p.text("memlab")?;
        p.dictionary(|p| {
            p.text("at")?;
            p.text(&loaded.moment.typed())?;
            p.text("time_ns")?;
            p.integer(snapshot.model.time())?;
            p.text("earlier_events_left_out")?;
            p.integer(events.left_out())
        })
    })?;
    pickler.end()
}

/// Segments of a device, plus one for each block outside all segments.
fn segments_of(snapshot: &ResolvedSnapshot, device: i32) -> Vec<Segment> {
    let mut segments = snapshot.model.segments(device).segments;
    let outside = unsegmented_blocks(&snapshot.model.blocks(device), &segments);
    segments.extend(outside.into_iter().map(|block| Segment {
        address: block.address,
        bytes: block.bytes,
        blocks: vec![block],
        ..Segment::default()
    }));
    segments
}

/// Blocks outside all segments; both lists are sorted by address.
fn unsegmented_blocks(blocks: &[BlockView], segments: &[Segment]) -> Vec<BlockView> {
    let mut within = segments.iter().flat_map(|segment| &segment.blocks).peekable();
    let is_stray = |block: &&BlockView| within.next_if(|next| next.address == block.address).is_none();
    blocks.iter().filter(is_stray).copied().collect()
}

fn write_segment(p: &mut Pickler<'_>, stacks: &mut Stacks<'_>, device: i32, segment: &Segment) -> io::Result<()> {
    let pieces = pieces(segment);
    let allocated = pieces.iter().filter(|piece| piece.block.is_some()).map(|piece| piece.bytes).sum();
    // PyTorch does not report the pool of a segment: infer it from the sizes of the segment and its blocks.
    let is_small = match segment.is_expandable {
        true => !segment.blocks.is_empty() && segment.blocks.iter().all(|block| block.bytes <= MAX_SMALL_BLOCK),
        false => segment.bytes == SMALL_SEGMENT,
    };
    p.dictionary(|p| {
        p.text("device")?;
        p.integer(device.unsigned_abs().into())?;
        p.text("address")?;
        p.integer(segment.address)?;
        p.text("total_size")?;
        p.integer(segment.bytes)?;
        for key in ["allocated_size", "active_size", "requested_size"] {
            p.text(key)?;
            p.integer(allocated)?;
        }
        p.text("stream")?;
        p.integer(0)?;
        p.text("segment_type")?;
        p.text(if is_small { "small" } else { "large" })?;
        p.text("segment_pool_id")?;
        let (first, second) = stacks.whole.pool_of_capture(device, segment.pool).unwrap_or_default();
        p.integer(first)?;
        p.integer(second)?;
        p.pair()?;
        p.text("is_expandable")?;
        p.boolean(segment.is_expandable)?;
        p.text("frames")?;
        stacks.write(p, 0)?;
        p.text("blocks")?;
        p.list(&pieces, |p, piece| write_piece(p, stacks, piece))
    })
}

/// A block, or a free piece between blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    address: u64,
    bytes: u64,
    block: Option<BlockView>,
}

/// Pieces of a segment, without gaps and overlaps even in a broken trace.
fn pieces(segment: &Segment) -> Vec<Piece> {
    let end = segment.address.saturating_add(segment.bytes);
    let mut pieces = Vec::new();
    let mut at = segment.address;
    for block in &segment.blocks {
        let block_end = block.address.saturating_add(block.bytes).min(end);
        if block.address > at {
            pieces.push(Piece { address: at, bytes: block.address - at, block: None });
            at = block.address;
        }
        if block_end > at {
            pieces.push(Piece { address: at, bytes: block_end - at, block: Some(*block) });
            at = block_end;
        }
    }
    if end > at {
        pieces.push(Piece { address: at, bytes: end - at, block: None });
    }
    pieces
}

fn write_piece(p: &mut Pickler<'_>, stacks: &mut Stacks<'_>, piece: &Piece) -> io::Result<()> {
    p.dictionary(|p| {
        p.text("address")?;
        p.integer(piece.address)?;
        p.text("size")?;
        p.integer(piece.bytes)?;
        p.text("requested_size")?;
        p.integer(if piece.block.is_some() { piece.bytes } else { 0 })?;
        p.text("state")?;
        p.text(if piece.block.is_some() { "active_allocated" } else { "inactive" })?;
        p.text("frames")?;
        stacks.write(p, piece.block.map_or(0, |block| block.stack))
    })
}

fn write_event(p: &mut Pickler<'_>, stacks: &mut Stacks<'_>, start_ns: u64, event: &Event) -> io::Result<()> {
    p.dictionary(|p| {
        p.text("action")?;
        p.text(event.action.as_str())?;
        p.text(if event.action == Action::Oom { "device_free" } else { "addr" })?;
        p.integer(event.address)?;
        p.text("size")?;
        p.integer(event.bytes)?;
        p.text("stream")?;
        p.integer(0)?;
        p.text("time_us")?;
        p.integer(start_ns.saturating_add(event.time) / 1000)?;
        if event.range != 0 {
            // `torch.cuda.memory._set_memory_metadata` puts its text here, and the viewer shows it.
            p.text("user_metadata")?;
            p.text(&range_name(&stacks.whole.range_path(event.range)))?;
        }
        p.text("frames")?;
        stacks.write(p, event.stack)
    })
}

/// Stacks as lists of frames. Each is written once and referenced afterwards.
struct Stacks<'m> {
    whole: &'m Model,
    stacks: HashMap<u32, Memo>,
    frames: HashMap<Arc<Line>, Memo>,
}

impl Stacks<'_> {
    /// Writes a stack, innermost frame first, as in PyTorch's format.
    fn write(&mut self, p: &mut Pickler<'_>, stack: u32) -> io::Result<()> {
        if let Some(memo) = self.stacks.get(&stack) {
            return p.get(*memo);
        }
        let frames = &mut self.frames;
        p.list(self.whole.frames(stack), |p, line| {
            if let Some(memo) = frames.get(&line) {
                return p.get(*memo);
            }
            p.dictionary(|p| {
                p.text("filename")?;
                p.text(&clean(&line.file))?;
                p.text("line")?;
                p.integer(line.line.unwrap_or(0).into())?;
                p.text("name")?;
                p.text(&clean(&line.function))
            })?;
            let memo = p.memoize()?;
            frames.insert(line, memo);
            Ok(())
        })?;
        let memo = p.memoize()?;
        self.stacks.insert(stack, memo);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use memlab_trace::Category;
    use memlab_trace::record::Phase;

    use super::*;

    fn block(address: u64, bytes: u64) -> BlockView {
        BlockView {
            address,
            bytes,
            category: Category::Input,
            stack: 0,
            layer: 0,
            owner: 0,
            range: 0,
            phase: Phase::Other,
            time: 0,
        }
    }

    #[test]
    fn pieces_fill_a_segment_whatever_its_blocks_are() {
        // GIVEN a segment with a hole, a block inside another, one that overlaps the next, and one beyond the end
        let blocks = vec![block(110, 20), block(112, 4), block(125, 10), block(190, 50)];
        let segment = Segment { address: 100, bytes: 100, blocks, ..Segment::default() };
        let pieces = pieces(&segment);
        let sizes: Vec<_> = pieces.iter().map(|piece| (piece.address, piece.bytes, piece.block.is_some())).collect();
        assert_eq!(sizes, [(100, 10, false), (110, 20, true), (130, 5, true), (135, 55, false), (190, 10, true)]);
    }

    #[test]
    fn blocks_outside_segments_are_found() {
        let segment = Segment { address: 100, bytes: 100, blocks: vec![block(110, 20)], ..Segment::default() };
        let outside = unsegmented_blocks(&[block(50, 1), block(110, 20), block(300, 1)], &[segment]);
        assert_eq!(outside.iter().map(|block| block.address).collect::<Vec<_>>(), [50, 300]);
    }
}
