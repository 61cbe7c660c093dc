//! Work on GPUs, piece by piece. Each stream has a track of kernels, copies and fills, and a track of their layers.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;

use memlab_trace::record::{Header, Ran};
use memlab_trace::{Model, WorkTotals};

use super::messages::{DebugAnnotation, EventType, TrackDescriptor, TrackEvent};
use super::packets::{Packets, id};
use memlab_base::kernels::KernelTime;
use memlab_base::text::{clean, place};

/// A slice of time, in nanoseconds since the trace's start.
struct Slice {
    begin: u64,
    end: u64,
    event: TrackEvent,
}

pub(super) fn gpu(
    packets: &mut Packets<'_>,
    whole: &Model,
    ran: &[Ran],
    device: Option<i32>,
    header: &Header,
    process: u64,
) -> io::Result<()> {
    let mut streams: BTreeMap<(i32, u32), Vec<Ran>> = BTreeMap::new();
    for piece in ran.iter().filter(|piece| device.is_none_or(|device| device == piece.device)) {
        streams.entry((piece.device, piece.stream)).or_default().push(*piece);
    }
    // Computes names once per kernel: demangling takes longer than writing.
    let mut named: HashMap<u32, (&'static str, String)> = HashMap::new();
    for piece in streams.values().flatten() {
        named.entry(piece.kernel).or_insert_with(|| {
            let KernelTime { kind, name, .. } =
                KernelTime::named(&whole.kernel_name(piece.kernel), WorkTotals::default());
            (kind.as_str(), clean(&name).into_owned())
        });
    }
    for ((device, stream), mut pieces) in streams {
        pieces.sort_by_key(|piece| piece.start);
        let index = i64::from(device) << 32 | i64::from(stream);
        let work = id(header, "stream", index);
        packets.describe(TrackDescriptor::child(work, process, &format!("cuda:{device} stream {stream}")))?;
        put(packets, pieces.iter().map(|piece| slice(piece, &named[&piece.kernel], whole, header, work)))?;
        let layers = id(header, "stream's layers", index);
        let name = format!("cuda:{device} stream {stream}, layers");
        packets.describe(TrackDescriptor::child(layers, process, &name))?;
        put(packets, by_layer(&pieces, whole, layers).into_iter())?;
    }
    Ok(())
}

/// Writes slices in order. An overlapping slice ends where the next begins: slices of a track must be nested.
fn put(packets: &mut Packets<'_>, slices: impl Iterator<Item = Slice>) -> io::Result<()> {
    let mut slices = slices.peekable();
    while let Some(Slice { begin, end, event }) = slices.next() {
        let track = event.track_uuid.unwrap_or_default();
        let end = slices.peek().map_or(end, |next| end.min(next.begin)).max(begin);
        packets.event(begin, event)?;
        packets.event(end, TrackEvent::new(EventType::SliceEnd, track))?;
    }
    Ok(())
}

fn slice(piece: &Ran, (category, name): &(&'static str, String), whole: &Model, header: &Header, track: u64) -> Slice {
    let mut facts = Vec::new();
    if let Some(line) = whole.line_of(piece.stack) {
        facts.push(DebugAnnotation::text("line", &format!("{} {}", place(&line, &header.directory), line.function)));
    }
    if let Some(layer) = whole.layer_name(piece.layer) {
        facts.push(DebugAnnotation::text("layer", &layer));
    }
    facts.push(DebugAnnotation::text("phase", piece.flags.phase().as_str()));
    if piece.bytes > 0 {
        facts.push(DebugAnnotation::number("bytes", piece.bytes));
    }
    let event = TrackEvent::new(EventType::SliceBegin, track).named(category, name.clone()).with(facts);
    Slice { begin: piece.start, end: end(piece), event }
}

/// Joins consecutive pieces of the same layer and phase into one slice.
fn by_layer(pieces: &[Ran], whole: &Model, track: u64) -> Vec<Slice> {
    let of = |piece: &Ran| (piece.layer, piece.flags.phase());
    let named = |layer: u32| -> Option<Arc<str>> { whole.layer_name(layer).or_else(|| whole.layer_class(layer)) };
    let runs = pieces.chunk_by(|one, next| of(one) == of(next));
    let slice = |run: &[Ran]| {
        let ((layer, phase), last) = (of(run.first()?), run.last()?);
        let event = TrackEvent::new(EventType::SliceBegin, track);
        let event = event.named(phase.as_str(), clean(&named(layer)?).into_owned());
        Some(Slice { begin: run.first()?.start, end: end(last), event })
    };
    runs.filter_map(slice).collect()
}

fn end(piece: &Ran) -> u64 {
    piece.start.saturating_add(piece.nanoseconds)
}
