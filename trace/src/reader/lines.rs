//! Line parser: finds lines in bytes, skips reserved but unwritten lines, counts garbled lines.

use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};

use super::chunks::{Chunk, ChunkEnd, zeros_in_front};
use super::error::FirstLine;
use crate::sink::Sink;
use memlab_format::decode_line;
use memlab_format::record::{FORMAT, Record};

/// Number of events announced to the model ahead, so that it fetches their blocks from memory meanwhile.
const PREFETCHED_EVENTS: usize = 16;

/// Maximum number of garbled lines with a description.
const MAX_DESCRIBED_LINES: usize = 5;

/// Garbled lines of a trace that were skipped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// Number of garbled lines.
    pub count: u64,
    /// First few garbled lines.
    pub first: Vec<SkippedLine>,
}

/// A garbled line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedLine {
    /// The number of the line, from 1.
    pub line: u64,
    /// Offset of its first byte in the (decompressed) trace.
    pub offset: u64,
    /// Reason why the line was skipped.
    pub reason: String,
}

/// The result of feeding a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FeedResult {
    /// Bytes that need not be fed again.
    pub(super) consumed: usize,
    /// True if the next line is reserved but not yet written.
    pub(super) at_hole: bool,
    /// True if the sink refused a line, which was not consumed.
    pub(super) refused: bool,
}

/// Splits buffers of a trace into lines and replays them.
#[derive(Clone, Default)]
pub(super) struct Feed {
    pub(super) skipped: Skipped,
    pub(super) has_header: bool,
    /// Bytes of the trace consumed.
    pub(super) offset: u64,
    /// Bytes of lines among them, without NULs and skipped ranges.
    pub(super) line_bytes: u64,
    lines: u64,
    /// End of the gap after a `skip` record.
    skip_to: u64,
    /// True before the first NUL of the continuation file; the bytes there repeat the trace.
    in_front: bool,
    /// True if the current line follows NULs: it may be the rest of an unfinished one.
    after_hole: bool,
    /// True within an overlong line, up to its newline.
    in_long_line: bool,
}

impl Feed {
    /// Replays the complete lines at the start of `buffer`.
    ///
    /// Skips up to `holes` reserved but unwritten ranges, and stops at the next one.
    pub(super) fn feed(&mut self, buffer: &[u8], holes: usize, sink: &mut impl Sink) -> Result<FeedResult, FirstLine> {
        let mut holes = holes;
        let mut position = self.without_front(buffer);
        let (mut at_hole, mut refused) = (false, false);
        while let Some(rest) = buffer.get(position..).filter(|rest| !rest.is_empty()) {
            let skipped = self.skip_to.saturating_sub(self.offset + position as u64);
            if skipped > 0 {
                position += rest.len().min(usize::try_from(skipped).unwrap_or(usize::MAX));
                continue;
            }
            if rest[0] == 0 {
                if holes == 0 {
                    at_hole = true;
                    break;
                }
                holes -= 1;
                position += zeros_in_front(rest);
                self.after_hole = true;
                continue;
            }
            let Some(length) = memchr::memchr(b'\n', rest) else { break };
            if self.line(&rest[..length], self.offset + position as u64, sink)?.is_break() {
                refused = true;
                break;
            }
            self.lines += 1;
            self.line_bytes += length as u64 + 1;
            self.after_hole = false;
            position += length + 1;
        }
        self.offset += position as u64;
        Ok(FeedResult { consumed: position, at_hole, refused })
    }

    /// Replays a chunk as [`Feed::feed`] does, and consumes all of it except an incomplete line.
    pub(super) fn feed_chunk(
        &mut self,
        chunk: &Chunk,
        holes: usize,
        sink: &mut impl Sink,
    ) -> Result<FeedResult, FirstLine> {
        let bytes = chunk.bytes();
        let mut fed = FeedResult { consumed: self.rest_of_long_line(bytes), at_hole: false, refused: false };
        let events = chunk.events();
        for (index, decoded) in events.iter().enumerate() {
            if index % PREFETCHED_EVENTS == 0 {
                for soon in events[index..].iter().take(PREFETCHED_EVENTS) {
                    let (device, address) = soon.event.place();
                    sink.model().expect(device, address);
                }
            }
            let (start, end) = (decoded.start as usize, decoded.end as usize);
            if start < fed.consumed {
                continue;
            }
            self.feed_between(&bytes[..start], holes, sink, &mut fed)?;
            // Decoded events apply only where a line would be read: after the header, and outside gaps.
            if fed.at_hole || fed.refused || fed.consumed < start || !self.is_at_any_line() {
                break;
            }
            if sink.take(decoded.event.into()).is_break() {
                fed.refused = true;
                break;
            }
            self.lines += 1;
            self.line_bytes += (end - start) as u64;
            self.offset += (end - start) as u64;
            self.after_hole = false;
            fed.consumed = end;
        }
        self.feed_between(bytes, holes, sink, &mut fed)?;
        let is_stuck = fed.consumed < bytes.len() && !fed.at_hole && !fed.refused;
        if is_stuck && matches!(chunk.end(), ChunkEnd::LongLine) {
            if !self.has_header {
                return Err(FirstLine::NotATrace);
            }
            self.overlong();
            self.pass_line(bytes.len() - fed.consumed);
            fed.consumed = bytes.len();
            self.in_long_line = true;
        }
        Ok(fed)
    }

    /// Feeds the unconsumed bytes of `bytes`.
    #[inline]
    fn feed_between(
        &mut self,
        bytes: &[u8],
        holes: usize,
        sink: &mut impl Sink,
        fed: &mut FeedResult,
    ) -> Result<(), FirstLine> {
        if fed.consumed < bytes.len() && !fed.at_hole && !fed.refused {
            let consumed = fed.consumed;
            *fed = self.feed(&bytes[consumed..], holes, sink)?;
            fed.consumed += consumed;
        }
        Ok(())
    }

    /// Returns true if an ordinary line follows: not the header, and not in a gap or repeated part.
    #[inline]
    fn is_at_any_line(&self) -> bool {
        self.has_header && !self.in_front && self.skip_to <= self.offset
    }

    /// Returns the bytes at the start of a buffer that belong to an overlong line, and passes over them.
    fn rest_of_long_line(&mut self, bytes: &[u8]) -> usize {
        if !self.in_long_line {
            return 0;
        }
        let newline = memchr::memchr(b'\n', bytes);
        self.in_long_line = newline.is_none();
        let rest = newline.map_or(bytes.len(), |newline| newline + 1);
        self.pass_line(rest);
        rest
    }

    /// Returns true within an overlong line.
    pub(super) fn is_in_long_line(&self) -> bool {
        self.in_long_line
    }

    /// Returns the offset to continue at, if it is beyond the bytes fed.
    pub(super) fn skips_to(&self) -> Option<u64> {
        (self.skip_to > self.offset).then_some(self.skip_to)
    }

    /// Continues at the start of the continuation file.
    pub(super) fn start_continuation(&mut self) {
        (self.offset, self.skip_to, self.in_front) = (0, 0, true);
        (self.after_hole, self.in_long_line) = (false, false);
    }

    /// Returns the bytes at the start of a buffer to skip as repetition.
    fn without_front(&mut self, buffer: &[u8]) -> usize {
        if !self.in_front {
            return 0;
        }
        let front = memchr::memchr(0, buffer);
        self.in_front = front.is_none();
        front.unwrap_or(buffer.len())
    }

    /// Replays the end of the trace, without newline. Returns true if it is truncated.
    pub(super) fn finish(&mut self, rest: &[u8], sink: &mut impl Sink) -> Result<bool, FirstLine> {
        let rest = rest.trim_ascii_end();
        let rest = rest.split(|byte| *byte == 0).rfind(|piece| !piece.is_empty()).unwrap_or_default();
        match decode_line(rest) {
            _ if rest.is_empty() => Ok(false),
            Ok(record) if !self.after_hole => self.replay(record, sink).map(|_| false),
            _ => Ok(!self.after_hole),
        }
    }

    /// Records the start of an overlong line.
    pub(super) fn overlong(&mut self) {
        self.skip(self.offset, "the line is too long for a trace".to_owned());
        self.lines += 1;
    }

    /// Skips bytes of an overlong line.
    pub(super) fn pass_line(&mut self, bytes: usize) {
        self.line_bytes += bytes as u64;
        self.pass(bytes);
    }

    /// Skips bytes.
    pub(super) fn pass(&mut self, bytes: usize) {
        self.offset += bytes as u64;
    }

    #[inline]
    fn line(&mut self, line: &[u8], offset: u64, sink: &mut impl Sink) -> Result<ControlFlow<()>, FirstLine> {
        match decode_line(line) {
            Ok(record) => self.replay(record, sink),
            Err(_) if line.trim_ascii().is_empty() => Ok(ControlFlow::Continue(())),
            Err(_) if !self.has_header && !self.after_hole => Err(FirstLine::NotATrace),
            Err(error) => self.unreadable(line, offset, error.to_string(), sink),
        }
    }

    /// Counts an unreadable line.
    ///
    /// The rest of an unfinished line is not an error; a complete line may follow in it.
    #[cold]
    fn unreadable(
        &mut self,
        line: &[u8],
        offset: u64,
        reason: String,
        sink: &mut impl Sink,
    ) -> Result<ControlFlow<()>, FirstLine> {
        if !self.after_hole {
            self.skip(offset, reason);
        }
        let mut pieces = line.split(|byte| *byte == 0);
        pieces.next();
        for piece in pieces.filter(|piece| piece.starts_with(b"[\"") || piece.starts_with(b"{\"")) {
            if let Ok(record) = decode_line(piece) {
                // The sink may refuse the rest of a damaged line.
                let _ = self.replay(record, sink)?;
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn skip(&mut self, offset: u64, reason: String) {
        self.skipped.count += 1;
        if self.skipped.first.len() < MAX_DESCRIBED_LINES {
            self.skipped.first.push(SkippedLine { line: self.lines + 1, offset, reason });
        }
    }

    #[inline]
    fn replay(&mut self, record: Record<'_>, sink: &mut impl Sink) -> Result<ControlFlow<()>, FirstLine> {
        if !self.has_header {
            match &record {
                Record::Header(header) if header.memlab > FORMAT => return Err(FirstLine::Newer(header.memlab)),
                Record::Header(_) => self.has_header = true,
                _ => return Err(FirstLine::NotATrace),
            }
        }
        if let Record::Skip(to) = record {
            self.skip_to = to;
            return Ok(ControlFlow::Continue(()));
        }
        Ok(sink.take(record))
    }
}

/// A position in a trace: the file (main or continuation), and the state of the line parser.
#[derive(Clone, Default)]
pub struct ReadPosition {
    pub(super) in_continuation: bool,
    pub(super) feed: Feed,
}
