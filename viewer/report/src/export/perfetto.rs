//! A run over time for <https://ui.perfetto.dev>.
//!
//! It contains memory counters of each device, steps, phases of every thread, the ranges that the program names, peaks,
//! out-of-memory events, and GPU work. Times are nanoseconds since 1970, and ids derive from the trace's own. The
//! exports of several ranks can therefore be concatenated into one file, and are aligned in time.

mod event_collector;
mod gpu;
mod messages;
mod packets;

use std::io::{self, Write};

use memlab_trace::record::{Header, Phase};
use memlab_trace::{DeviceView, Model, TotalsView};

pub use event_collector::EventCollector;
use event_collector::RangeChange;

use memlab_base::moment::LoadedMoment;
use memlab_base::text::{clean, place, short_command};
use memlab_units::format::size;
use messages::{
    CounterDescriptor, DebugAnnotation, EventType, ProcessDescriptor, ThreadDescriptor, TrackDescriptor, TrackEvent,
    Unit,
};
use packets::{Packets, id};

/// Writes the collected events, of one device or of all.
///
/// # Errors
///
/// Errors of `out`.
pub fn write(
    out: &mut dyn Write,
    loaded: &LoadedMoment,
    events: &EventCollector,
    device: Option<i32>,
) -> io::Result<()> {
    let whole = &loaded.snapshot.final_model;
    let header = whole.header().cloned().unwrap_or_default();
    let mut packets = Packets::new(out, &header);
    let process = id(&header, "process", 0);
    packets.describe(process_track(process, &header))?;
    steps(&mut packets, loaded, &header, process)?;
    phases(&mut packets, whole, events, &header, process)?;
    ranges(&mut packets, loaded, events, &header, process)?;
    gpu::gpu(&mut packets, whole, events.ran(), device, &header, process)?;
    for view in whole.devices().into_iter().filter(|view| device.is_none_or(|device| device == view.index)) {
        counters(&mut packets, events, &view, &header, process)?;
        instants(&mut packets, loaded, &view, &header, process)?;
    }
    Ok(())
}

fn process_track(uuid: u64, header: &Header) -> TrackDescriptor {
    let name = match header.rank {
        Some(rank) => format!("rank {rank}: {}", short_command(&header.command)),
        None => short_command(&header.command),
    };
    let process = ProcessDescriptor {
        pid: i32::try_from(header.pid).ok(),
        cmdline: header.command.iter().map(|word| clean(word).into_owned()).collect(),
        process_name: Some(name),
    };
    TrackDescriptor { uuid: Some(uuid), process: Some(process), ..TrackDescriptor::default() }
}

fn steps(packets: &mut Packets<'_>, loaded: &LoadedMoment, header: &Header, process: u64) -> io::Result<()> {
    let moment = &loaded.snapshot.model;
    if moment.steps().is_empty() {
        return Ok(());
    }
    let track = id(header, "steps", 0);
    packets.describe(TrackDescriptor::child(track, process, "optimizer steps"))?;
    let mut begin = moment
        .devices()
        .iter()
        .filter_map(|view| moment.timeline(view.index).points.first().copied())
        .map(|point| point.time)
        .min()
        .unwrap_or(0);
    for step in moment.steps() {
        let begin = std::mem::replace(&mut begin, step.end_time).min(step.end_time);
        let name = match step.steps {
            0 | 1 => format!("step {}", step.index),
            steps => format!("steps {}–{}", (step.index + 1).saturating_sub(steps), step.index),
        };
        let facts = vec![
            DebugAnnotation::number("peak_allocated_bytes", step.peak_allocated_bytes),
            DebugAnnotation::number("allocated_bytes_at_end", step.allocated_bytes_at_end),
        ];
        packets.event(begin, TrackEvent::new(EventType::SliceBegin, track).named("step", name).with(facts))?;
        packets.event(step.end_time, TrackEvent::new(EventType::SliceEnd, track))?;
    }
    Ok(())
}

/// Phases of every thread, as far as its allocations show them.
fn phases(
    packets: &mut Packets<'_>,
    whole: &Model,
    events: &EventCollector,
    header: &Header,
    process: u64,
) -> io::Result<()> {
    for (thread, slices) in events.phases() {
        let track = id(header, "thread", i64::from(thread));
        packets.describe(match whole.thread(thread) {
            None => TrackDescriptor::child(track, process, &format!("thread {thread}")),
            Some(known) => {
                let descriptor = ThreadDescriptor {
                    pid: i32::try_from(header.pid).ok(),
                    tid: i32::try_from(known.tid).ok(),
                    thread_name: Some(clean(&known.name).into_owned()),
                };
                TrackDescriptor { uuid: Some(track), thread: Some(descriptor), ..TrackDescriptor::default() }
            }
        })?;
        for slice in slices {
            let name = match slice.phase {
                Phase::Other => continue,
                phase => phase.as_str(),
            };
            packets
                .event(slice.begin, TrackEvent::new(EventType::SliceBegin, track).named("phase", name.to_owned()))?;
            packets.event(slice.end, TrackEvent::new(EventType::SliceEnd, track))?;
        }
    }
    Ok(())
}

/// Ranges that the program names, on one track per thread.
fn ranges(
    packets: &mut Packets<'_>,
    loaded: &LoadedMoment,
    events: &EventCollector,
    header: &Header,
    process: u64,
) -> io::Result<()> {
    let (moment, whole) = (&loaded.snapshot.model, &loaded.snapshot.final_model);
    for (thread, changes) in events.ranges() {
        let track = id(header, "ranges", i64::from(thread));
        let name = match whole.thread(thread).filter(|known| !known.name.is_empty()) {
            Some(known) => format!("ranges of {}", clean(&known.name)),
            None => format!("ranges of thread {thread}"),
        };
        packets.describe(TrackDescriptor::child(track, process, &name))?;
        let mut open = 0;
        for (time, change) in changes {
            match change {
                RangeChange::Enter(name) => {
                    open += 1;
                    let name = clean(name).into_owned();
                    packets.event(*time, TrackEvent::new(EventType::SliceBegin, track).named("range", name))?;
                }
                // A condensed trace starts inside ranges.
                RangeChange::Leave if open == 0 => {}
                RangeChange::Leave => {
                    open -= 1;
                    packets.event(*time, TrackEvent::new(EventType::SliceEnd, track))?;
                }
            }
        }
        for _ in 0..open {
            packets.event(moment.time(), TrackEvent::new(EventType::SliceEnd, track))?;
        }
    }
    Ok(())
}

/// A counter of a device: its name in the picture, and its value.
type Counter = (&'static str, fn(&TotalsView) -> u64);

const COUNTERS: [Counter; 3] = [
    ("allocated", |totals| totals.allocated_bytes),
    ("reserved", |totals| totals.reserved_bytes),
    ("used", |totals| totals.used_bytes),
];

fn counters(
    packets: &mut Packets<'_>,
    events: &EventCollector,
    view: &DeviceView,
    header: &Header,
    process: u64,
) -> io::Result<()> {
    for (name, of) in COUNTERS {
        let track = id(header, name, i64::from(view.index));
        packets.describe(TrackDescriptor {
            counter: Some(CounterDescriptor { unit: Some(Unit::SizeBytes as i32) }),
            ..TrackDescriptor::child(track, process, &format!("cuda:{} {name}", view.index))
        })?;
        let mut last = None;
        for (time, totals) in events.of(view.index) {
            let value = of(totals);
            if last.replace(value) != Some(value) {
                packets.event(*time, TrackEvent::count(track, value))?;
            }
        }
    }
    Ok(())
}

/// Peak and out-of-memory events of a device.
fn instants(
    packets: &mut Packets<'_>,
    loaded: &LoadedMoment,
    view: &DeviceView,
    header: &Header,
    process: u64,
) -> io::Result<()> {
    let (moment, whole) = (&loaded.snapshot.model, &loaded.snapshot.final_model);
    let mut instants = Vec::new();
    if view.peak_event <= moment.events() && view.peak_allocated_bytes > 0 {
        let facts = vec![
            DebugAnnotation::number("allocated_bytes", view.peak_allocated_bytes),
            DebugAnnotation::number("reserved_bytes", view.reserved_bytes_at_peak),
            DebugAnnotation::number("used_bytes", view.used_bytes_at_peak),
        ];
        let name = format!("peak: {} allocated", size(view.peak_allocated_bytes));
        instants.push((view.peak_time, "peak", name, facts));
    }
    for oom in moment.ooms().iter().filter(|oom| oom.device == view.index) {
        let mut facts = vec![
            DebugAnnotation::number("requested_bytes", oom.requested_bytes),
            DebugAnnotation::number("allocated_bytes", oom.allocated_bytes),
            DebugAnnotation::number("reserved_bytes", oom.reserved_bytes),
            DebugAnnotation::number("largest_free_block_bytes", oom.largest_free_block_bytes),
        ];
        if let Some(line) = whole.line_of(oom.stack) {
            let place = place(&line, &header.directory);
            facts.push(DebugAnnotation::text("line", &format!("{place} {}", line.function)));
        }
        if let Some(layer) = &oom.layer {
            facts.push(DebugAnnotation::text("layer", layer));
        }
        instants.push((oom.time, "oom", format!("out of memory: {} requested", size(oom.requested_bytes)), facts));
    }
    if instants.is_empty() {
        return Ok(());
    }
    let track = id(header, "events", i64::from(view.index));
    packets.describe(TrackDescriptor::child(track, process, &format!("cuda:{} events", view.index)))?;
    instants.sort_by_key(|(time, ..)| *time);
    for (time, category, name, facts) in instants {
        packets.event(time, TrackEvent::new(EventType::Instant, track).named(category, name).with(facts))?;
    }
    Ok(())
}
