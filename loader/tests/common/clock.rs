//! A device whose streams are clocks: a copy takes a nanosecond a byte, and nothing takes the test any time.
//!
//! It copies nothing, but remembers when each copy wrote where, so that a test can tell what a reader would have read.

use std::collections::HashMap;
use std::sync::Mutex;

use memlab_loader::{Backend, Event, Result, Stream, Transfer};

#[derive(Default)]
pub struct Clock(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    streams: HashMap<u64, u64>,
    events: HashMap<u64, u64>,
    handles: u64,
    copies: Vec<Copied>,
    reads: Vec<Read>,
}

/// Bytes `from..` of the arena were written to `to..` of the device.
#[derive(Clone, Copy, Debug)]
pub struct Copied {
    pub transfer: Transfer,
    pub begin: u64,
    pub end: u64,
}

/// A stream read `bytes` at device address `at`, which were to be those at `of` in the arena.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    pub at: u64,
    pub of: u64,
    pub bytes: u64,
    pub begin: u64,
    pub end: u64,
}

/// The first stream for copies; others than those are readers'.
const FIRST_COPIES: u64 = 1 << 32;

impl Clock {
    pub fn now(&self, stream: Stream) -> u64 {
        self.0.lock().unwrap().streams.get(&stream.0).copied().unwrap_or(0)
    }

    /// Computes for so long on `stream`, reading ranges (device address, arena address, bytes); when that began and ended.
    pub fn compute(&self, stream: Stream, ns: u64, ranges: &[(u64, u64, u64)]) -> (u64, u64) {
        let mut inner = self.0.lock().unwrap();
        let time = inner.streams.entry(stream.0).or_default();
        let begin = *time;
        *time += ns;
        let end = *time;
        inner.reads.extend(ranges.iter().map(|&(at, of, bytes)| Read { at, of, bytes, begin, end }));
        (begin, end)
    }

    pub fn copies(&self) -> Vec<Copied> {
        self.0.lock().unwrap().copies.clone()
    }

    /// Panics if a read met other bytes than it should have, or bytes that were being written.
    pub fn assert_all_reads_right(&self) {
        let inner = self.0.lock().unwrap();
        for read in &inner.reads {
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
        let mut inner = self.0.lock().unwrap();
        inner.handles += 1;
        Ok(Stream(FIRST_COPIES + inner.handles))
    }

    fn destroy_stream(&self, _stream: Stream) {}

    fn create_event(&self, _timed: bool) -> Result<Event> {
        let mut inner = self.0.lock().unwrap();
        inner.handles += 1;
        Ok(Event(inner.handles))
    }

    fn destroy_event(&self, event: Event) {
        self.0.lock().unwrap().events.remove(&event.0);
    }

    fn record(&self, event: Event, stream: Stream) -> Result<()> {
        let mut inner = self.0.lock().unwrap();
        let now = inner.streams.get(&stream.0).copied().unwrap_or(0);
        inner.events.insert(event.0, now);
        Ok(())
    }

    fn wait(&self, stream: Stream, event: Event) -> Result<bool> {
        let mut inner = self.0.lock().unwrap();
        let at = inner.events[&event.0];
        let time = inner.streams.entry(stream.0).or_default();
        *time = (*time).max(at);
        Ok(true)
    }

    fn block(&self, _event: Event) -> Result<()> {
        panic!("a device's streams wait themselves")
    }

    unsafe fn copy(&self, transfer: &Transfer, stream: Stream) -> Result<()> {
        let mut inner = self.0.lock().unwrap();
        let time = inner.streams.entry(stream.0).or_default();
        let begin = *time;
        *time += transfer.bytes;
        let end = *time;
        inner.copies.push(Copied { transfer: *transfer, begin, end });
        Ok(())
    }

    fn synchronize(&self, _stream: Stream) -> Result<()> {
        Ok(())
    }

    fn elapsed_ns(&self, from: Event, to: Event) -> Result<u64> {
        let inner = self.0.lock().unwrap();
        Ok(inner.events[&to.0].saturating_sub(inner.events[&from.0]))
    }
}
