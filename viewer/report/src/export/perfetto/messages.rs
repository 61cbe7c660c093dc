//! The messages of Perfetto's trace format in use, with the fields in use.
//!
//! Full format: <https://perfetto.dev/docs/reference/trace-packet-proto>. Semantics:
//! <https://perfetto.dev/docs/reference/synthetic-track-event>.

use memlab_base::text::clean;

/// `TracePacket`: one item of a trace.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct TracePacket {
    /// Nanoseconds.
    #[prost(uint64, optional, tag = "8")]
    pub(super) timestamp: Option<u64>,
    #[prost(uint32, optional, tag = "10")]
    pub(super) trusted_packet_sequence_id: Option<u32>,
    #[prost(message, optional, tag = "11")]
    pub(super) track_event: Option<TrackEvent>,
    #[prost(uint32, optional, tag = "13")]
    pub(super) sequence_flags: Option<u32>,
    #[prost(message, optional, tag = "60")]
    pub(super) track_descriptor: Option<TrackDescriptor>,
}

/// `TracePacket.SequenceFlags`.
#[derive(Clone, Copy, Debug)]
pub(super) enum SequenceFlags {
    IncrementalStateCleared = 1,
}

/// `TrackDescriptor`: a row of the picture.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct TrackDescriptor {
    #[prost(uint64, optional, tag = "1")]
    pub(super) uuid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    pub(super) name: Option<String>,
    #[prost(message, optional, tag = "3")]
    pub(super) process: Option<ProcessDescriptor>,
    #[prost(message, optional, tag = "4")]
    pub(super) thread: Option<ThreadDescriptor>,
    #[prost(uint64, optional, tag = "5")]
    pub(super) parent_uuid: Option<u64>,
    #[prost(message, optional, tag = "8")]
    pub(super) counter: Option<CounterDescriptor>,
}

/// `ProcessDescriptor`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ProcessDescriptor {
    #[prost(int32, optional, tag = "1")]
    pub(super) pid: Option<i32>,
    #[prost(string, repeated, tag = "2")]
    pub(super) cmdline: Vec<String>,
    #[prost(string, optional, tag = "6")]
    pub(super) process_name: Option<String>,
}

/// `ThreadDescriptor`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ThreadDescriptor {
    #[prost(int32, optional, tag = "1")]
    pub(super) pid: Option<i32>,
    #[prost(int32, optional, tag = "2")]
    pub(super) tid: Option<i32>,
    #[prost(string, optional, tag = "5")]
    pub(super) thread_name: Option<String>,
}

/// `CounterDescriptor`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct CounterDescriptor {
    #[prost(enumeration = "Unit", optional, tag = "3")]
    pub(super) unit: Option<i32>,
}

/// `CounterDescriptor.Unit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub(super) enum Unit {
    Unspecified = 0,
    SizeBytes = 3,
}

/// `TrackEvent`: an event on a track.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct TrackEvent {
    #[prost(message, repeated, tag = "4")]
    pub(super) debug_annotations: Vec<DebugAnnotation>,
    #[prost(enumeration = "EventType", optional, tag = "9")]
    pub(super) r#type: Option<i32>,
    #[prost(uint64, optional, tag = "11")]
    pub(super) track_uuid: Option<u64>,
    #[prost(string, repeated, tag = "22")]
    pub(super) categories: Vec<String>,
    #[prost(string, optional, tag = "23")]
    pub(super) name: Option<String>,
    #[prost(int64, optional, tag = "30")]
    pub(super) counter_value: Option<i64>,
}

/// `TrackEvent.Type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub(super) enum EventType {
    Unspecified = 0,
    SliceBegin = 1,
    SliceEnd = 2,
    Instant = 3,
    Counter = 4,
}

/// `DebugAnnotation`: a fact about an event.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct DebugAnnotation {
    #[prost(uint64, optional, tag = "3")]
    pub(super) uint_value: Option<u64>,
    #[prost(string, optional, tag = "6")]
    pub(super) string_value: Option<String>,
    #[prost(string, optional, tag = "10")]
    pub(super) name: Option<String>,
}

impl TrackDescriptor {
    pub(super) fn child(uuid: u64, parent: u64, name: &str) -> Self {
        let name = Some(name.to_owned());
        Self { uuid: Some(uuid), parent_uuid: Some(parent), name, ..Self::default() }
    }
}

impl TrackEvent {
    pub(super) fn new(kind: EventType, track: u64) -> Self {
        Self { r#type: Some(kind as i32), track_uuid: Some(track), ..Self::default() }
    }

    pub(super) fn count(track: u64, value: u64) -> Self {
        let value = i64::try_from(value).unwrap_or(i64::MAX);
        Self { counter_value: Some(value), ..Self::new(EventType::Counter, track) }
    }

    pub(super) fn named(self, category: &str, name: String) -> Self {
        Self { categories: vec![category.to_owned()], name: Some(name), ..self }
    }

    pub(super) fn with(self, debug_annotations: Vec<DebugAnnotation>) -> Self {
        Self { debug_annotations, ..self }
    }
}

impl DebugAnnotation {
    pub(super) fn number(name: &str, value: u64) -> Self {
        Self { uint_value: Some(value), name: Some(name.to_owned()), string_value: None }
    }

    pub(super) fn text(name: &str, value: &str) -> Self {
        Self { string_value: Some(clean(value).into_owned()), name: Some(name.to_owned()), uint_value: None }
    }
}
