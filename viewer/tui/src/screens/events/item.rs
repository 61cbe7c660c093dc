//! A row of the events.

use std::sync::Arc;

use memlab_trace::{EventKind, EventView};

use memlab_base::filter::{Field, Filterable};
use memlab_base::text::{NO_RANGE, phase_name};
use memlab_follow::snapshot::SnapshotNames;

/// A row of the table.
#[derive(Clone, Debug)]
pub struct EventItem {
    /// The event.
    pub event: EventView,
    /// Names of its ids.
    pub names: Arc<SnapshotNames>,
    pub(super) device: String,
    pub(super) line: String,
}

impl EventItem {
    /// Kind of event, in a word or two.
    pub fn kind(&self) -> &'static str {
        match self.event.kind {
            EventKind::Alloc => "alloc",
            EventKind::Free => "free",
            EventKind::DriverAlloc(_, true) => "segment",
            EventKind::DriverAlloc(_, false) => "driver alloc",
            EventKind::DriverFree(_) => "driver free",
            EventKind::Map => "map",
            EventKind::Unmap => "unmap",
            EventKind::Oom => "out of memory",
            EventKind::Step => "step",
            EventKind::InRange => "range",
            EventKind::Used => "used",
            EventKind::Moved => "moved",
            EventKind::End => "end",
        }
    }

    /// Sign of its bytes: allocated or freed; `None`: neither.
    pub fn sign(&self) -> Option<&'static str> {
        match self.event.kind {
            EventKind::Alloc | EventKind::DriverAlloc(..) | EventKind::Map => Some("+"),
            EventKind::Free | EventKind::DriverFree(_) | EventKind::Unmap => Some("-"),
            EventKind::Oom
            | EventKind::Step
            | EventKind::InRange
            | EventKind::Used
            | EventKind::Moved
            | EventKind::End => None,
        }
    }

    /// The layer that made the request.
    pub fn layer(&self) -> Option<&str> {
        self.names.layers.get(&self.event.layer).map(|layer| &**layer)
    }

    /// The range that the thread is in after the event.
    pub fn range(&self) -> Option<&str> {
        let range = u32::try_from(self.event.address).ok().filter(|_| self.event.kind == EventKind::InRange)?;
        Some(self.names.ranges.get(&range).map_or(NO_RANGE, |name| name))
    }

    /// The line that made the request, as file and number; empty without a line.
    pub fn line(&self) -> &str {
        &self.line
    }

    /// Phase of the program.
    pub fn phase(&self) -> &'static str {
        phase_name(self.event.phase)
    }
}

impl Filterable for EventItem {
    fn texts(&self) -> Vec<&str> {
        let function = self.names.lines.get(&self.event.stack).map_or("", |line| &*line.function);
        vec![
            self.kind(),
            &self.line,
            function,
            self.layer().unwrap_or_default(),
            self.range().unwrap_or_default(),
            self.event.call.as_deref().unwrap_or_default(),
        ]
    }

    fn bytes(&self) -> u64 {
        self.event.bytes
    }

    fn field(&self, field: Field) -> Vec<&str> {
        match field {
            Field::Layer => self.layer().into_iter().collect(),
            Field::Category => self.event.category.map(|category| category.as_str()).into_iter().collect(),
            Field::Line => vec![&self.line],
            Field::Function => {
                self.names.lines.get(&self.event.stack).map(|line| &*line.function).into_iter().collect()
            }
            Field::Kind => vec![self.kind()],
            Field::Phase => vec![self.phase()],
            Field::Device => vec![&self.device],
            Field::Class => Vec::new(),
        }
    }
}
