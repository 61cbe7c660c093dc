//! The copy pipeline: one stream per device, a few copies in flight at a time; progress counts completed copies.
//!
//! The driver's work on a piece of memory before and after its copies overlaps with the copies of other pieces.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use interpose_driver::calls::{self, Code, Event, Stream};
use interpose_driver::vmm::arena::{PendingRegions, Span};

/// A copy between a device's address space and the arena, or within the address space.
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

    /// Waits until the host memory of the copy is pinned.
    fn wait_for_memory(self, pending: &PendingRegions) -> Result<(), Code> {
        match self {
            Self::ToHost { to: span, .. } | Self::ToDevice { from: span, .. } => pending.wait_for(span),
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

/// A piece of memory that is copied.
pub trait Transfer: Send {
    fn copies(&self) -> &[Copy];

    /// Prepares the piece.
    ///
    /// Called before the first of its copies begins.
    fn prepare(&mut self) -> Result<(), Code> {
        Ok(())
    }

    /// Finishes the piece.
    ///
    /// Called after the last of its copies has ended.
    fn finish(&mut self) {}
}

impl Transfer for Vec<Copy> {
    fn copies(&self) -> &[Copy] {
        self
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

/// Maximum size of a single copy: large enough to use the bus fully, small enough for a progress bar.
const MAX_COPY_BYTES: u64 = 64 << 20;
const MAX_IN_FLIGHT: usize = 4;

/// Makes all copies, on all devices in parallel, and returns when they have ended.
///
/// The copies wait for arena memory that is still `pending`. Each context's pieces are in the order of `transfers`.
pub fn run<'a, T: Transfer + 'a>(
    transfers: impl IntoIterator<Item = (u64, &'a mut T)>,
    pending: &PendingRegions,
    done: &AtomicU64,
) -> Result<(), Code> {
    // Each behind a lock, for whichever thread copies them.
    let mut by_context: BTreeMap<u64, Mutex<Vec<&mut T>>> = BTreeMap::new();
    for (context, transfer) in transfers {
        by_context.entry(context).or_default().get_mut().push(transfer);
    }
    let Some((&last, transfers_of_last)) = by_context.last_key_value() else { return Ok(()) };
    std::thread::scope(|scope| {
        let others = by_context.iter().filter(|&(&context, _)| context != last);
        let (threads, unstarted): (Vec<_>, Vec<_>) = others
            .map(|(&context, transfers)| {
                let work = move || on_stream(context, &mut transfers.lock(), pending, done);
                std::thread::Builder::new().spawn_scoped(scope, work).map_err(|_| (context, transfers))
            })
            .partition(Result::is_ok);
        // This thread copies for the last device, and for devices whose thread could not be started.
        let mut outcome = on_stream(last, &mut transfers_of_last.lock(), pending, done);
        for (context, transfers) in unstarted.into_iter().filter_map(Result::err) {
            outcome = outcome.and_then(|()| on_stream(context, &mut transfers.lock(), pending, done));
        }
        let ended = threads.into_iter().flatten().map(|thread| thread.join().unwrap_or(Err(Code::NOT_INITIALIZED)));
        ended.fold(outcome, Result::and)
    })
}

fn on_stream<T: Transfer>(
    context: u64,
    transfers: &mut [&mut T],
    pending: &PendingRegions,
    done: &AtomicU64,
) -> Result<(), Code> {
    calls::relax_captures();
    calls::set_context(context)?;
    let stream = calls::create_stream()?;
    let mut pump = CopyStream { stream, in_flight: VecDeque::new(), unmarked: 0, finished: 0, has_failed: false, done };
    let copied = pump.submit_all(transfers, pending);
    let copied = std::iter::from_fn(|| pump.finish_oldest(transfers)).fold(copied, Result::and);
    // Wait even after an error: submitted copies must end before their memory is released.
    let ended = calls::synchronize_stream(stream);
    calls::destroy_stream(stream);
    copied.and(ended)
}

/// A point in the stream after some copies.
struct StreamMark {
    event: Event,
    /// Bytes since the previous mark.
    bytes: u64,
    /// Number of transfers with all of their copies before this mark.
    transfers: usize,
}

/// Copies of one device.
struct CopyStream<'a> {
    stream: Stream,
    in_flight: VecDeque<StreamMark>,
    /// Bytes submitted since the last mark.
    unmarked: u64,
    /// Number of finished transfers.
    ///
    /// After a failure, no more are finished.
    finished: usize,
    has_failed: bool,
    done: &'a AtomicU64,
}

impl CopyStream<'_> {
    fn submit_all<T: Transfer>(&mut self, transfers: &mut [&mut T], pending: &PendingRegions) -> Result<(), Code> {
        for number in 0..transfers.len() {
            transfers[number].prepare()?;
            for index in 0..transfers[number].copies().len() {
                let copy = transfers[number].copies()[index];
                copy.wait_for_memory(pending)?;
                for offset in (0..copy.bytes()).step_by(MAX_COPY_BYTES as usize) {
                    let bytes = (copy.bytes() - offset).min(MAX_COPY_BYTES);
                    copy.submit(offset, bytes, self.stream)?;
                    self.unmarked += bytes;
                    if self.unmarked >= MAX_COPY_BYTES {
                        self.mark(number)?;
                    }
                    if self.in_flight.len() > MAX_IN_FLIGHT {
                        self.finish_oldest(transfers).unwrap_or(Ok(()))?;
                    }
                }
            }
        }
        self.mark(transfers.len())
    }

    /// Marks the end of the submitted copies, which include all of the first `transfers`.
    fn mark(&mut self, transfers: usize) -> Result<(), Code> {
        let event = calls::create_event()?;
        calls::record(event, self.stream).inspect_err(|_| calls::destroy_event(event))?;
        self.in_flight.push_back(StreamMark { event, bytes: std::mem::take(&mut self.unmarked), transfers });
        Ok(())
    }

    /// Waits for the oldest mark.
    ///
    /// Returns `None` without a mark.
    fn finish_oldest<T: Transfer>(&mut self, transfers: &mut [&mut T]) -> Option<Result<(), Code>> {
        let mark = self.in_flight.pop_front()?;
        let waited = calls::wait_for(mark.event);
        calls::destroy_event(mark.event);
        self.done.fetch_add(mark.bytes, Ordering::Relaxed);
        self.has_failed |= waited.is_err();
        if !self.has_failed {
            transfers[self.finished..mark.transfers].iter_mut().for_each(|transfer| transfer.finish());
            self.finished = mark.transfers;
        }
        Some(waited)
    }
}
