//! A device whose streams are clocks: a copy takes a nanosecond of simulated time per byte, and no real time.
//!
//! It copies nothing, but records the time and target of each copy, so that a test can compute what a reader would have
//! read. Streams can be captured into graphs by CUDA's rules, and graphs can be replayed.

use std::collections::HashMap;
use std::time::Duration;

use memlab_paging::backend::CaptureStatus;
use memlab_paging::{Backend, Error, Event, Result, Stream, Transfer};
use parking_lot::Mutex;

use super::model::GRAIN;

#[derive(Default)]
pub struct Clock(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    /// End of the host's last wait.
    ///
    /// Work submitted later starts no earlier.
    host: u64,
    streams: HashMap<u64, u64>,
    events: HashMap<u64, u64>,
    handles: u64,
    copies: Vec<Copied>,
    reads: Vec<Read>,
    captures: Vec<Capture>,
}

/// Work on a stream.
#[derive(Clone, Debug)]
enum Work {
    Record(u64),
    Wait(u64),
    Copy(Transfer),
    Compute(u64, Vec<(u64, u64, u64)>),
}

/// The captured work, in order.
#[derive(Clone, Debug)]
pub struct Graph {
    origin: u64,
    work: Vec<(u64, Work)>,
}

/// A capture in progress.
struct Capture {
    id: u64,
    graph: Graph,
    is_broken: bool,
    /// Streams in the capture, and the amount of their work that the origin waits for.
    members: HashMap<u64, usize>,
    /// Stream and index in the work at which each event was recorded.
    events: HashMap<u64, (u64, usize)>,
}

impl Capture {
    fn has(&self, stream: u64) -> bool {
        self.members.contains_key(&stream)
    }

    /// Returns true if the stream has work after the point that others wait for.
    fn is_unjoined(&self, stream: u64, joined: usize) -> bool {
        let last = self.graph.work.iter().rposition(|(on, work)| *on == stream && !matches!(work, Work::Record(_)));
        stream != self.graph.origin && last.is_some_and(|last| last >= joined)
    }
}

fn forbidden<T>(what: &str) -> Result<T> {
    Err(Error::Failed(format!("a capture forbids {what}")))
}

/// A copy of bytes `from..` of the arena to `to..` of the device.
#[derive(Clone, Copy, Debug)]
pub struct Copied {
    pub transfer: Transfer,
    pub begin: u64,
    pub end: u64,
}

/// A read by a stream of `bytes` at device address `at`, which must equal those at `of` in the arena.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    pub at: u64,
    pub of: u64,
    pub bytes: u64,
    pub begin: u64,
    pub end: u64,
}

impl Read {
    /// Splits the read into parts that one copy has written.
    fn grains(&self) -> impl Iterator<Item = Self> {
        let part =
            |done: u64| Self { at: self.at + done, of: self.of + done, bytes: GRAIN.min(self.bytes - done), ..*self };
        (0..self.bytes).step_by(GRAIN as usize).map(part)
    }
}

/// First copy stream.
///
/// Lower numbers are readers.
const FIRST_COPIES: u64 = 1 << 32;

impl Inner {
    /// Makes the stream busy for `ns`.
    fn advance(&mut self, stream: u64, ns: u64) -> (u64, u64) {
        let time = self.streams.entry(stream).or_default();
        let begin = (*time).max(self.host);
        *time = begin + ns;
        (begin, begin + ns)
    }
}

impl Clock {
    /// Computes for `ns` on `stream`, reading ranges (device address, arena address, bytes).
    ///
    /// Returns start and end.
    pub fn compute(&self, stream: Stream, ns: u64, ranges: &[(u64, u64, u64)]) -> (u64, u64) {
        let mut inner = self.0.lock();
        if let Some(capture) = inner.captures.iter_mut().find(|capture| capture.has(stream.0)) {
            capture.graph.work.push((stream.0, Work::Compute(ns, ranges.to_vec())));
            return (0, 0);
        }
        let (begin, end) = inner.advance(stream.0, ns);
        inner.reads.extend(ranges.iter().map(|&(at, of, bytes)| Read { at, of, bytes, begin, end }));
        (begin, end)
    }

    pub fn begin_capture(&self, stream: Stream) {
        let mut inner = self.0.lock();
        inner.handles += 1;
        let id = inner.handles;
        inner.captures.push(Capture {
            id,
            graph: Graph { origin: stream.0, work: Vec::new() },
            is_broken: false,
            members: HashMap::from([(stream.0, 0)]),
            events: HashMap::new(),
        });
    }

    /// Acts like a call that a capture forbids.
    pub fn break_capture(&self, stream: Stream) {
        let mut inner = self.0.lock();
        inner.captures.iter_mut().find(|capture| capture.has(stream.0)).unwrap().is_broken = true;
    }

    /// Ends a capture.
    ///
    /// Returns an error if the capture is invalid or a stream was not joined.
    pub fn end_capture(&self, stream: Stream) -> Result<Graph> {
        let mut inner = self.0.lock();
        let index = inner.captures.iter().position(|capture| capture.graph.origin == stream.0).unwrap();
        let capture = inner.captures.swap_remove(index);
        if capture.is_broken {
            return forbidden("nothing: it was broken");
        }
        match capture.members.iter().find(|(stream, joined)| capture.is_unjoined(**stream, **joined)) {
            Some((stream, _)) => forbidden(&format!("to end without joining stream {stream}")),
            None => Ok(capture.graph),
        }
    }

    pub fn replay(&self, graph: &Graph, stream: Stream) {
        let mut inner = self.0.lock();
        let (begin, _) = inner.advance(stream.0, 0);
        let (mut streams, mut events) = (HashMap::new(), HashMap::new());
        for (on, work) in &graph.work {
            let time = streams.entry(*on).or_insert(begin);
            let start = *time;
            match work {
                Work::Record(event) => drop(events.insert(*event, start)),
                Work::Wait(event) => *time = start.max(events[event]),
                Work::Copy(transfer) => {
                    *time += transfer.bytes;
                    inner.copies.push(Copied { transfer: *transfer, begin: start, end: *time });
                }
                Work::Compute(ns, ranges) => {
                    *time += ns;
                    let end = *time;
                    let read = |&(at, of, bytes)| Read { at, of, bytes, begin: start, end };
                    inner.reads.extend(ranges.iter().map(read));
                }
            }
        }
        let end = streams.get(&graph.origin).copied().unwrap_or(begin);
        inner.streams.insert(stream.0, end);
    }

    pub fn copies(&self) -> Vec<Copied> {
        self.0.lock().copies.clone()
    }

    /// Panics if a read saw wrong bytes, or bytes that were being written.
    pub fn assert_all_reads_right(&self) {
        let inner = self.0.lock();
        for read in inner.reads.iter().flat_map(Read::grains) {
            let touching = inner.copies.iter().filter(|copy| {
                copy.transfer.to < read.at + read.bytes && read.at < copy.transfer.to + copy.transfer.bytes
            });
            let mut newest: Option<&Copied> = None;
            for copy in touching {
                assert!(copy.end <= read.begin || copy.begin >= read.end, "{copy:?} wrote during {read:?}");
                if copy.end <= read.begin && newest.is_none_or(|newest| newest.end < copy.end) {
                    newest = Some(copy);
                }
            }
            let newest = newest.unwrap_or_else(|| panic!("{read:?} read what was never written"));
            let Transfer { from, to, .. } = newest.transfer;
            assert!(to <= read.at && from + (read.at - to) == read.of, "{read:?} read what {newest:?} wrote");
        }
    }
}

impl Backend for Clock {
    fn create_stream(&self) -> Result<Stream> {
        let mut inner = self.0.lock();
        inner.handles += 1;
        Ok(Stream(FIRST_COPIES + inner.handles))
    }

    fn destroy_stream(&self, _stream: Stream) {}

    fn create_event(&self, _timed: bool) -> Result<Event> {
        let mut inner = self.0.lock();
        inner.handles += 1;
        Ok(Event(inner.handles))
    }

    fn destroy_event(&self, event: Event) {
        self.0.lock().events.remove(&event.0);
    }

    fn record(&self, event: Event, stream: Stream) -> Result<()> {
        let mut inner = self.0.lock();
        for capture in &mut inner.captures {
            capture.events.remove(&event.0);
        }
        if let Some(capture) = inner.captures.iter_mut().find(|capture| capture.has(stream.0)) {
            capture.events.insert(event.0, (stream.0, capture.graph.work.len()));
            capture.graph.work.push((stream.0, Work::Record(event.0)));
            inner.events.remove(&event.0);
            return if inner.captures.iter().any(|capture| capture.is_broken) { forbidden("work") } else { Ok(()) };
        }
        let (now, _) = inner.advance(stream.0, 0);
        inner.events.insert(event.0, now);
        Ok(())
    }

    fn wait(&self, stream: Stream, event: Event) -> Result<bool> {
        let mut inner = self.0.lock();
        let of_stream = inner.captures.iter().position(|capture| capture.has(stream.0));
        let of_event = inner.captures.iter().position(|capture| capture.events.contains_key(&event.0));
        match (of_stream, of_event) {
            (None, None) => {}
            (Some(_), None) => return forbidden("to wait for what is outside"),
            (Some(one), Some(other)) if one != other => return forbidden("to be merged with another"),
            (_, Some(index)) => {
                let capture = &mut inner.captures[index];
                let (from, at) = capture.events[&event.0];
                capture.members.entry(stream.0).or_insert(0);
                if stream.0 == capture.graph.origin
                    && let Some(joined) = capture.members.get_mut(&from)
                {
                    *joined = (*joined).max(at);
                }
                capture.graph.work.push((stream.0, Work::Wait(event.0)));
                return Ok(true);
            }
        }
        let at = inner.events[&event.0];
        let time = inner.streams.entry(stream.0).or_default();
        *time = (*time).max(at);
        Ok(true)
    }

    fn block(&self, _event: Event, _longest: Duration) -> Result<bool> {
        panic!("a device's streams wait themselves")
    }

    unsafe fn copy(&self, transfer: &Transfer, stream: Stream) -> Result<()> {
        let mut inner = self.0.lock();
        if let Some(capture) = inner.captures.iter_mut().find(|capture| capture.has(stream.0)) {
            capture.graph.work.push((stream.0, Work::Copy(*transfer)));
            return Ok(());
        }
        let (begin, end) = inner.advance(stream.0, transfer.bytes);
        inner.copies.push(Copied { transfer: *transfer, begin, end });
        Ok(())
    }

    fn synchronize(&self, stream: Stream) -> Result<()> {
        let mut inner = self.0.lock();
        if inner.captures.iter().any(|capture| capture.has(stream.0)) {
            return forbidden("to wait for it");
        }
        inner.host = inner.host.max(inner.streams.get(&stream.0).copied().unwrap_or(0));
        Ok(())
    }

    fn capturing(&self, stream: Stream) -> Result<CaptureStatus> {
        let inner = self.0.lock();
        Ok(match inner.captures.iter().find(|capture| capture.has(stream.0)) {
            None => CaptureStatus::None,
            Some(capture) if capture.is_broken => CaptureStatus::Broken,
            Some(capture) => CaptureStatus::Active(capture.id),
        })
    }

    fn elapsed_ns(&self, from: Event, to: Event) -> Result<u64> {
        let inner = self.0.lock();
        Ok(inner.events[&to.0].saturating_sub(inner.events[&from.0]))
    }
}
