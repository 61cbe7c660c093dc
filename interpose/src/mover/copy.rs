//! The copy pipeline: one stream per device, a few copies in flight at a time; progress counts completed copies.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::cuda::calls::{self, Code, Event, Stream};
use crate::vmm::arena::{Growing, Span};

/// One copy between a device's address space and the arena, or within the address space.
#[derive(Clone, Copy, Debug)]
pub enum Copy {
    ToHost { from: u64, to: Span },
    ToDevice { from: Span, to: u64 },
    OnDevice { from: u64, to: u64, bytes: u64 },
}

impl Copy {
    fn bytes(self) -> u64 {
        match self {
            Self::ToHost { to: span, .. } | Self::ToDevice { from: span, .. } => span.bytes,
            Self::OnDevice { bytes, .. } => bytes,
        }
    }

    /// Waits until the host memory that it needs is pinned.
    fn wait_for_memory(self, growing: &Growing) -> Result<(), Code> {
        match self {
            Self::ToHost { to: span, .. } | Self::ToDevice { from: span, .. } => growing.wait_for(span),
            Self::OnDevice { .. } => Ok(()),
        }
    }

    /// Starts the part of the copy from `offset` on.
    fn submit(self, offset: u64, bytes: u64, stream: Stream) -> Result<(), Code> {
        match self {
            Self::ToHost { from, to } => {
                calls::copy_to_host(to.pointer().wrapping_add(offset as usize), from + offset, bytes, stream)
            }
            Self::ToDevice { from, to } => {
                calls::copy_to_device(to + offset, from.pointer().wrapping_add(offset as usize), bytes, stream)
            }
            Self::OnDevice { from, to, .. } => calls::copy_on_device(to + offset, from + offset, bytes, stream),
        }
    }
}

/// Copies between the spans of the arena, in order, and the addresses from `address` on.
pub fn of_spans(spans: &[Span], address: u64, copy: impl Fn(Span, u64) -> Copy) -> impl Iterator<Item = Copy> {
    let mut next = address;
    spans.iter().map(move |&span| {
        let at = next;
        next += span.bytes;
        copy(span, at)
    })
}

/// The longest single copy: long enough to use the bus fully, short enough for a progress bar.
const LONGEST: u64 = 64 << 20;
const MAX_IN_FLIGHT: usize = 4;

/// Makes all copies, on all devices in parallel; returns when they have ended. They wait for memory of the arena that is still `growing`.
pub fn run(copies: &BTreeMap<u64, Vec<Copy>>, growing: &Growing, done: &AtomicU64) -> Result<(), Code> {
    let Some((&last, copies_of_last)) = copies.last_key_value() else { return Ok(()) };
    std::thread::scope(|scope| {
        let others = copies.iter().filter(|&(&context, _)| context != last);
        let (threads, unstarted): (Vec<_>, Vec<_>) = others
            .map(|(&context, copies)| {
                let work = move || on_stream(context, copies, growing, done);
                std::thread::Builder::new().spawn_scoped(scope, work).map_err(|_| (context, copies))
            })
            .partition(Result::is_ok);
        // This thread copies for the last device, and for devices whose thread could not be started.
        let mut outcome = on_stream(last, copies_of_last, growing, done);
        for (context, copies) in unstarted.into_iter().filter_map(Result::err) {
            outcome = outcome.and_then(|()| on_stream(context, copies, growing, done));
        }
        let ended = threads.into_iter().flatten().map(|thread| thread.join().unwrap_or(Err(Code::NOT_INITIALIZED)));
        ended.fold(outcome, Result::and)
    })
}

fn on_stream(context: u64, copies: &[Copy], growing: &Growing, done: &AtomicU64) -> Result<(), Code> {
    calls::relax_captures();
    calls::set_context(context)?;
    let stream = calls::create_stream()?;
    let copied = pump(copies, growing, stream, done);
    // Also after an error: submitted copies must end before their memory is released.
    let ended = calls::synchronize_stream(stream);
    calls::destroy_stream(stream);
    copied.and(ended)
}

fn pump(copies: &[Copy], growing: &Growing, stream: Stream, done: &AtomicU64) -> Result<(), Code> {
    let mut in_flight: VecDeque<(Event, u64)> = VecDeque::new();
    let finish = |(event, bytes): (Event, u64)| {
        let waited = calls::wait_for(event);
        calls::destroy_event(event);
        done.fetch_add(bytes, Ordering::Relaxed);
        waited
    };
    let mut submitted = || {
        let mut unmarked = 0;
        for copy in copies {
            copy.wait_for_memory(growing)?;
            let mut offset = 0;
            while offset < copy.bytes() {
                let bytes = (copy.bytes() - offset).min(LONGEST);
                copy.submit(offset, bytes, stream)?;
                offset += bytes;
                unmarked += bytes;
                if unmarked >= LONGEST {
                    in_flight.push_back((mark(stream)?, unmarked));
                    unmarked = 0;
                }
                if in_flight.len() > MAX_IN_FLIGHT
                    && let Some(oldest) = in_flight.pop_front()
                {
                    finish(oldest)?;
                }
            }
        }
        if unmarked > 0 {
            in_flight.push_back((mark(stream)?, unmarked));
        }
        Ok(())
    };
    let submitted = submitted();
    in_flight.into_iter().map(finish).fold(submitted, Result::and)
}

fn mark(stream: Stream) -> Result<Event, Code> {
    let event = calls::create_event()?;
    calls::record(event, stream).inspect_err(|_| calls::destroy_event(event))?;
    Ok(event)
}
