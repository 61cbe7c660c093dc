//! Chunks of whole lines of a trace. Another thread can read and decode them ahead of the replay.

use std::io::{self, Read};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, sync_channel};
use std::thread;

use super::limits::{CHUNK_BYTES, MAX_LINE_BYTES};
use memlab_format::{BlockEvent, decode_block_event};

/// Maximum number of chunks that wait for the replay.
const QUEUED_CHUNKS: usize = 4;

/// Whole lines of a trace.
#[derive(Default)]
pub(super) struct Chunk {
    bytes: Vec<u8>,
    /// Number of these bytes already consumed.
    consumed: usize,
    /// Block events among the lines, if they were decoded ahead.
    events: Vec<DecodedEvent>,
    end: ChunkEnd,
    /// Bytes of the file read when this chunk was filled.
    pub(super) file_bytes_read: u64,
}

/// Continuation after a chunk.
#[derive(Debug, Default)]
pub(super) enum ChunkEnd {
    /// The next line.
    #[default]
    Line,
    /// The rest of an overlong line that starts in this chunk.
    LongLine,
    /// The end of the source, perhaps within a line.
    Source,
    /// A read error.
    Failure(io::Error),
}

/// A block event, with the position of its line in the chunk.
pub(super) struct DecodedEvent {
    pub(super) start: u32,
    /// After the newline.
    pub(super) end: u32,
    pub(super) event: BlockEvent,
}

impl Chunk {
    /// Returns the bytes not consumed yet.
    pub(super) fn rest(&self) -> &[u8] {
        &self.bytes[self.consumed..]
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn events(&self) -> &[DecodedEvent] {
        &self.events
    }

    pub(super) fn end(&self) -> &ChunkEnd {
        &self.end
    }

    /// Marks the first `bytes` bytes as consumed.
    pub(super) fn consume(&mut self, bytes: usize) {
        self.consumed = bytes;
    }

    /// Returns the read error that ended this chunk, if any.
    pub(super) fn take_failure(&mut self) -> Option<io::Error> {
        match std::mem::replace(&mut self.end, ChunkEnd::Source) {
            ChunkEnd::Failure(error) => Some(error),
            end => {
                self.end = end;
                None
            }
        }
    }

    fn is_last(&self) -> bool {
        matches!(self.end, ChunkEnd::Source | ChunkEnd::Failure(_))
    }

    fn decode(&mut self) {
        let mut start = 0;
        for newline in memchr::memchr_iter(b'\n', &self.bytes) {
            if let Some(event) = decode_block_event(&self.bytes[start..newline]) {
                // A chunk is some MiB at most.
                self.events.push(DecodedEvent { start: start as u32, end: newline as u32 + 1, event });
            }
            start = newline + 1;
        }
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(2 * CHUNK_BYTES);
        self.events.clear();
        (self.consumed, self.end, self.file_bytes_read) = (0, ChunkEnd::Line, 0);
    }
}

/// Splits a source into chunks.
pub(super) struct Chunks<R> {
    pub(super) source: R,
    /// Bytes read but not part of a chunk yet, and bytes returned by the visitor.
    pending: Vec<u8>,
    /// Returns the bytes of its file that a source has read.
    bytes_read: fn(&R) -> u64,
}

impl<R: Read + Send> Chunks<R> {
    pub(super) fn new(source: R, bytes_read: fn(&R) -> u64) -> Self {
        Self { source, pending: Vec::new(), bytes_read }
    }

    /// Returns the bytes read but not consumed.
    pub(super) fn pending(&self) -> &[u8] {
        &self.pending
    }

    /// Drops the pending bytes after the source has moved.
    pub(super) fn clear(&mut self) {
        self.pending.clear();
    }

    /// Passes each chunk to `visit`, until it breaks or the source ends.
    ///
    /// The next call passes the unconsumed bytes again. With `ahead`, another thread reads and decodes the following chunks.
    pub(super) fn each<B>(&mut self, ahead: bool, visit: impl FnMut(&mut Chunk) -> ControlFlow<B>) -> Option<B> {
        if ahead { self.each_ahead(visit) } else { self.each_here(visit) }
    }

    fn each_here<B>(&mut self, mut visit: impl FnMut(&mut Chunk) -> ControlFlow<B>) -> Option<B> {
        let mut chunk = Chunk::default();
        loop {
            self.fill(&mut chunk);
            let visited = visit(&mut chunk);
            if visited.is_break() || chunk.is_last() {
                self.pending.splice(..0, chunk.rest().iter().copied());
                return visited.break_value();
            }
        }
    }

    fn each_ahead<B>(&mut self, mut visit: impl FnMut(&mut Chunk) -> ControlFlow<B>) -> Option<B> {
        let stopped = &AtomicBool::new(false);
        let (filled, to_visit) = sync_channel::<Chunk>(QUEUED_CHUNKS);
        let (visited, to_fill) = channel::<Chunk>();
        let mut broken = None;
        let mut unconsumed = Vec::new();
        thread::scope(|scope| {
            let this = &mut *self;
            // The visitor's loop ends when this thread ends and drops its channel ends.
            scope.spawn(move || {
                while !stopped.load(Ordering::Relaxed) {
                    let mut chunk = to_fill.try_recv().unwrap_or_default();
                    this.fill(&mut chunk);
                    chunk.decode();
                    let is_last = chunk.is_last();
                    // The visitor receives everything that is sent.
                    if filled.send(chunk).is_err() || is_last {
                        break;
                    }
                }
            });
            for mut chunk in to_visit {
                if broken.is_none() {
                    broken = visit(&mut chunk).break_value();
                    stopped.store(broken.is_some(), Ordering::Relaxed);
                }
                if broken.is_some() || chunk.is_last() {
                    unconsumed.extend_from_slice(chunk.rest());
                }
                // The reader may have ended.
                let _ = visited.send(chunk);
            }
        });
        self.pending.splice(..0, unconsumed);
        broken
    }

    /// Fills a chunk with the next lines.
    fn fill(&mut self, chunk: &mut Chunk) {
        chunk.clear();
        std::mem::swap(&mut chunk.bytes, &mut self.pending);
        chunk.end = self.read_lines(&mut chunk.bytes);
        chunk.file_bytes_read = (self.bytes_read)(&self.source);
    }

    /// Appends to `bytes` until they contain whole lines; the bytes after the last line become pending.
    fn read_lines(&mut self, bytes: &mut Vec<u8>) -> ChunkEnd {
        loop {
            if let Some(ended) = self.read_some(bytes) {
                return ended;
            }
            if let Some(end) = end_of_lines(bytes) {
                self.pending.extend_from_slice(&bytes[end..]);
                bytes.truncate(end);
                return ChunkEnd::Line;
            }
            if bytes.len() >= MAX_LINE_BYTES {
                return ChunkEnd::LongLine;
            }
        }
    }

    /// Appends one chunk length of bytes; returns the end if fewer are left.
    fn read_some(&mut self, bytes: &mut Vec<u8>) -> Option<ChunkEnd> {
        bytes.reserve(CHUNK_BYTES);
        match self.source.by_ref().take(CHUNK_BYTES as u64).read_to_end(bytes) {
            Ok(CHUNK_BYTES) => None,
            Ok(_) => Some(ChunkEnd::Source),
            Err(error) => Some(ChunkEnd::Failure(error)),
        }
    }
}

/// Returns the end of the last line: after its newline, or after the NULs of reserved lines.
fn end_of_lines(bytes: &[u8]) -> Option<usize> {
    let newline = memchr::memrchr(b'\n', bytes).map(|newline| newline + 1);
    let after_lines = &bytes[newline.unwrap_or(0)..];
    let is_reserved = after_lines.last() == Some(&0) && zeros_in_front(after_lines) == after_lines.len();
    if is_reserved { Some(bytes.len()) } else { newline }
}

/// Returns the number of leading NULs.
///
/// A file with preallocated disk space has gigabytes of them. They are compared in blocks, which the compiler vectorizes.
pub(super) fn zeros_in_front(bytes: &[u8]) -> usize {
    const PIECE: usize = 4096;
    let is_zero = |piece: &&[u8]| piece.iter().fold(0, |all, byte| all | byte) == 0;
    let whole = bytes.chunks_exact(PIECE).take_while(is_zero).count() * PIECE;
    bytes[whole..].iter().position(|byte| *byte != 0).map_or(bytes.len(), |more| whole + more)
}

#[cfg(test)]
mod tests {
    use super::super::lines::Feed;
    use super::*;
    use crate::model::Model;
    use crate::sink::Sink;
    use memlab_format::record::Record;

    /// Records what it takes, and refuses every record beyond `allowed`.
    #[derive(Default)]
    struct RecordingSink {
        records: Vec<String>,
        allowed: usize,
        model: Model,
    }

    impl Sink for RecordingSink {
        fn take(&mut self, record: Record<'_>) -> ControlFlow<()> {
            if self.records.len() == self.allowed {
                return ControlFlow::Break(());
            }
            self.records.push(format!("{record:?}"));
            ControlFlow::Continue(())
        }

        fn model(&self) -> &Model {
            &self.model
        }

        fn restart(&mut self) {
            self.records.clear();
        }
    }

    /// Returns a few bytes per read.
    struct SlowReader<'b> {
        bytes: &'b [u8],
        most: usize,
    }

    impl Read for SlowReader<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let most = self.most.min(buffer.len());
            self.bytes.read(&mut buffer[..most])
        }
    }

    /// Returns a trace of some chunks with every kind of unusual line, selected by `seed`.
    fn trace(seed: u64) -> Vec<u8> {
        let mut state = seed;
        let mut below = |limit: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % limit
        };
        let mut bytes = b"{\"memlab\":1,\"pid\":7}\n".to_vec();
        let mut is_long_line_missing = true;
        for _ in 0..40_000 {
            let number = bytes.len() as u64;
            match below(2000) {
                0 => bytes.extend(std::iter::repeat_n(0, below(3) as usize * CHUNK_BYTES / 2 + 5)),
                1 => bytes.extend_from_slice(b"[\"a\",12,1,0,\0\0\0\n"),
                2 => bytes.extend_from_slice(b"\0\0[\"a\",1,1,0,77,512,0,0,0]\n"),
                3 => bytes.extend_from_slice(b"[\"a\",1,1,0,77]\n[\"f\",1]\nnonsense\n\n"),
                4 => bytes.extend_from_slice(b"{\"frame\":1,\"file\":\"a.py\",\"line\":3,\"function\":\"f\"}\n"),
                5 => {
                    let to = number + below(1 << 16);
                    bytes.extend_from_slice(format!("{{\"skip\":{to}}}\n").as_bytes());
                }
                6 if std::mem::take(&mut is_long_line_missing) => {
                    bytes.extend_from_slice(b"\n[\"f\",1,1,0,\"");
                    bytes.extend(std::iter::repeat_n(b'x', MAX_LINE_BYTES + CHUNK_BYTES + below(99) as usize));
                    bytes.extend_from_slice(b"\n");
                }
                7 => {
                    bytes.extend_from_slice(b"{\"warning\":\"");
                    bytes.extend(std::iter::repeat_n(b'w', below(600_000) as usize));
                    bytes.extend_from_slice(b"\"}\n");
                }
                8..1000 => bytes.extend_from_slice(format!("[\"f\",{number},1,0,{number}]\n").as_bytes()),
                _ => bytes.extend_from_slice(format!("[\"a\",{number},1,0,{number},512,5,7,5]\n").as_bytes()),
            }
        }
        bytes.extend_from_slice(b"[\"f\",1,1,");
        bytes
    }

    /// Replays a trace line by line. Returns the records, and the feed with its skipped lines.
    fn line_by_line(bytes: &[u8]) -> (Vec<String>, Feed) {
        let (mut feed, mut sink) = (Feed::default(), RecordingSink { allowed: usize::MAX, ..RecordingSink::default() });
        let mut chunk = Chunk::default();
        chunk.bytes.extend_from_slice(bytes);
        feed.feed_chunk(&chunk, usize::MAX, &mut sink).unwrap();
        (sink.records, feed)
    }

    #[test]
    fn chunks_are_replayed_like_lines_also_where_it_stops_on_the_way() {
        for (seed, most) in [(1, usize::MAX), (2, 70_000), (3, 4096), (4, usize::MAX), (5, 1 << 20), (6, usize::MAX)] {
            // GIVEN a trace with holes, skipped ranges, garbled, long and far too long lines, read in pieces of any size
            let bytes = trace(seed);
            let (expected, whole) = line_by_line(&bytes);
            for ahead in [false, true] {
                let (mut feed, mut sink) = (Feed::default(), RecordingSink::default());
                let mut chunks = Chunks::new(SlowReader { bytes: &bytes, most }, |_| 0);
                // WHEN another thread's chunks replay it, with a stop every few thousand records
                let mut stops = 0;
                loop {
                    sink.allowed = sink.records.len() + 4321;
                    let stopped = chunks.each(ahead, |chunk| {
                        let fed = feed.feed_chunk(chunk, usize::MAX, &mut sink).unwrap();
                        chunk.consume(fed.consumed);
                        if fed.refused { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                    });
                    if stopped.is_none() {
                        break;
                    }
                    stops += 1;
                }
                // THEN every record arrives once and in order, and the skipped lines are the same
                assert!(stops > 2 && sink.records.len() > 10_000, "{stops} stops, {} records", sink.records.len());
                assert!(sink.records == expected, "seed {seed}, ahead {ahead}");
                assert_eq!(feed.skipped.count, whole.skipped.count);
                // AND only the incomplete line is left
                assert_eq!(feed.offset, whole.offset);
                assert_eq!(chunks.pending(), &bytes[whole.offset as usize..]);
            }
        }
    }

    #[test]
    fn a_failure_comes_after_what_precedes_it() {
        struct FailingReader(usize);
        impl Read for FailingReader {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                self.0 = self.0.checked_sub(1).ok_or(io::Error::other("damaged"))?;
                let line = b"[\"f\",1,1,0,5]\n";
                buffer[..line.len()].copy_from_slice(line);
                Ok(line.len())
            }
        }
        for ahead in [false, true] {
            // GIVEN a source that has three lines and then fails
            let mut chunks = Chunks::new(FailingReader(3), |_| 0);
            let (mut lines, mut failure) = (0, None);
            let ended = chunks.each(ahead, |chunk| {
                lines += chunk.rest().iter().filter(|byte| **byte == b'\n').count();
                chunk.consume(chunk.rest().len());
                failure = chunk.take_failure();
                ControlFlow::<()>::Continue(())
            });
            // THEN the lines arrive, and then the read error
            assert_eq!((ended, lines, failure.unwrap().to_string()), (None, 3, "damaged".to_owned()));
        }
    }
}
