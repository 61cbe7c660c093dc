//! The columns of the events.

use std::cmp::Ordering;

use memlab_trace::EventKind;

use super::item::EventItem;
use crate::size_units::Units;
use crate::widgets::columns::{Column, bytes_text};
use memlab_units::format;

/// Columns of the events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventColumn {
    /// Number of the event.
    Number,
    /// Time.
    Time,
    /// Kind of event.
    Kind,
    /// Bytes.
    Bytes,
    /// Device.
    Device,
    /// Thread.
    Thread,
    /// Address.
    Address,
    /// Phase of the program.
    Phase,
    /// Line or layer that made the request.
    Who,
}

impl Column for EventColumn {
    type Item = EventItem;

    const ALL: &'static [Self] = &[
        Self::Number,
        Self::Time,
        Self::Kind,
        Self::Bytes,
        Self::Device,
        Self::Thread,
        Self::Address,
        Self::Phase,
        Self::Who,
    ];

    fn title(self) -> &'static str {
        match self {
            Self::Number => "event",
            Self::Time => "time",
            Self::Kind => "what",
            Self::Bytes => "size",
            Self::Device => "device",
            Self::Thread => "thread",
            Self::Address => "address",
            Self::Phase => "phase",
            Self::Who => "line",
        }
    }

    fn columns(self) -> u16 {
        match self {
            Self::Who => 0,
            Self::Device => 6,
            Self::Kind => 13,
            Self::Thread => 14,
            Self::Address => 16,
            Self::Time => 12,
            _ => 10,
        }
    }

    fn shown_from(self) -> u16 {
        match self {
            Self::Number => 90,
            Self::Device => 80,
            Self::Phase => 110,
            Self::Thread => 130,
            Self::Address => 150,
            _ => 0,
        }
    }

    fn figure(self, row: &EventItem) -> Option<f64> {
        match self {
            Self::Number | Self::Time => Some(row.event.number as f64),
            Self::Bytes => Some(row.event.bytes as f64),
            Self::Device => Some(f64::from(row.event.device)),
            Self::Thread => Some(f64::from(row.event.thread)),
            Self::Address => Some(row.event.address as f64),
            Self::Kind | Self::Phase | Self::Who => None,
        }
    }

    fn compare_names(a: &EventItem, b: &EventItem) -> Ordering {
        let by_name = a.kind().cmp(b.kind()).then_with(|| a.line.cmp(&b.line));
        by_name.then(b.event.number.cmp(&a.event.number))
    }

    fn text(self, row: &EventItem, units: Units) -> String {
        let event = &row.event;
        let is_of_memory = !matches!(event.kind, EventKind::Step | EventKind::InRange | EventKind::End);
        match self {
            Self::Number => format::grouped(event.number),
            Self::Time => format::seconds(event.time),
            Self::Kind => row.kind().to_owned(),
            Self::Bytes if is_of_memory && event.bytes > 0 => {
                row.sign().map_or_else(String::new, str::to_owned) + &bytes_text(event.bytes, units)
            }
            Self::Bytes if is_of_memory => bytes_text(0, units),
            Self::Device if is_of_memory => row.device.clone(),
            Self::Thread => row.names.threads.get(&event.thread).cloned().unwrap_or_default(),
            Self::Address if is_of_memory && event.address != 0 => format!("{:x}", event.address),
            Self::Phase => row.phase().to_owned(),
            Self::Bytes | Self::Device | Self::Address | Self::Who => String::new(),
        }
    }
}
