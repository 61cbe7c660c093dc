//! Writes packets, and numbers tracks.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::io::{self, Write};

use memlab_trace::record::Header;
use prost::Message;

use super::messages::{SequenceFlags, TracePacket, TrackDescriptor, TrackEvent};

/// Id for a track of this trace, unique among traces; never 0.
pub(super) fn id(header: &Header, kind: &str, index: i64) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&header.id, header.pid, header.start_unix_ns, kind, index).hash(&mut hasher);
    hasher.finish().max(1)
}

/// Writes packets one by one, as fields of a `Trace`.
pub(super) struct Packets<'o> {
    out: &'o mut dyn Write,
    sequence: u32,
    start: u64,
    is_first: bool,
}

impl<'o> Packets<'o> {
    pub(super) fn new(out: &'o mut dyn Write, header: &Header) -> Self {
        let sequence = id(header, "sequence", 0) as u32 | 1;
        Self { out, sequence, start: header.start_unix_ns, is_first: true }
    }

    pub(super) fn describe(&mut self, descriptor: TrackDescriptor) -> io::Result<()> {
        self.put(TracePacket { track_descriptor: Some(descriptor), ..TracePacket::default() })
    }

    pub(super) fn event(&mut self, time: u64, event: TrackEvent) -> io::Result<()> {
        let timestamp = Some(self.start.saturating_add(time));
        self.put(TracePacket { timestamp, track_event: Some(event), ..TracePacket::default() })
    }

    fn put(&mut self, mut packet: TracePacket) -> io::Result<()> {
        packet.trusted_packet_sequence_id = Some(self.sequence);
        if std::mem::take(&mut self.is_first) {
            packet.sequence_flags = Some(SequenceFlags::IncrementalStateCleared as u32);
        }
        let packet = packet.encode_length_delimited_to_vec();
        /// Field 1 of `Trace`, length-delimited.
        const PACKET: u8 = 1 << 3 | 2;
        self.out.write_all(&[PACKET])?;
        self.out.write_all(&packet)
    }
}
