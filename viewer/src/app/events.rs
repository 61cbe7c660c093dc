//! The events: the latest ones before the moment shown, one by one.

use std::cmp::Ordering;
use std::sync::Arc;

use memlab_trace::{EventKind, EventView};

use super::App;
use super::table::{Column, TableState, bytes_text};
use crate::filter::{Field, Row};
use crate::format::{self, Units};
use crate::snapshot::Names;
use crate::text::{phase_name, place};

/// A row of the table.
#[derive(Clone, Debug)]
pub struct EventItem {
    /// The event.
    pub event: EventView,
    /// What its ids stand for.
    pub names: Arc<Names>,
    device: String,
    line: String,
}

impl EventItem {
    /// What happened, in a word or two.
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
            EventKind::Used => "used",
            EventKind::Moved => "moved",
            EventKind::End => "end",
        }
    }

    /// Whether it took memory or gave it back; `None`: neither.
    pub fn sign(&self) -> Option<&'static str> {
        match self.event.kind {
            EventKind::Alloc | EventKind::DriverAlloc(..) | EventKind::Map => Some("+"),
            EventKind::Free | EventKind::DriverFree(_) | EventKind::Unmap => Some("-"),
            EventKind::Oom | EventKind::Step | EventKind::Used | EventKind::Moved | EventKind::End => None,
        }
    }

    /// The layer that asked.
    pub fn layer(&self) -> Option<&str> {
        self.names.layers.get(&self.event.layer).map(|layer| &**layer)
    }

    /// The line that asked: file and number; empty if there is none.
    pub fn line(&self) -> &str {
        &self.line
    }

    /// What the program was doing.
    pub fn phase(&self) -> &'static str {
        phase_name(self.event.phase)
    }
}

impl Row for EventItem {
    fn texts(&self) -> Vec<&str> {
        let function = self.names.lines.get(&self.event.stack).map_or("", |line| &*line.function);
        vec![
            self.kind(),
            &self.line,
            function,
            self.layer().unwrap_or_default(),
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

/// The table of events: while the cursor is on its first row it stays there, so that the newest are seen; elsewhere it
/// stays on its event, whatever comes in above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventsState {
    /// Order and cursor.
    pub table: TableState<EventColumn>,
    /// The row where the cursor was put last.
    row: usize,
    /// The number of the event there; `None`: the first row, whichever that is.
    number: Option<u64>,
}

impl Default for EventsState {
    fn default() -> Self {
        Self { table: TableState::new(EventColumn::Number), row: 0, number: None }
    }
}

impl EventsState {
    /// Puts the cursor where it belongs among `items`: where it was moved to since the last time, counted from the
    /// event it was on.
    pub fn follow(&mut self, items: &[EventItem]) {
        let was_moved = self.table.selected != self.row;
        let is_at_top = self.table.selected == 0 && was_moved;
        let here = self.number.filter(|_| !is_at_top).map_or(0, |number| row_of(items, number));
        // What is on the screen stands still.
        let came = here as isize - self.row as isize;
        self.table.offset = self.table.offset.saturating_add_signed(came);
        let moved = self.table.selected as i128 - self.row as i128;
        let row = (here as i128 + moved).clamp(0, items.len().saturating_sub(1) as i128);
        self.table.selected = if is_at_top { 0 } else { row as usize };
        if was_moved {
            self.number =
                items.get(self.table.selected).filter(|_| self.table.selected > 0).map(|item| item.event.number);
        }
        self.row = self.table.selected;
    }

    /// Whether the event that the cursor was on is not among `items` any more.
    pub fn has_lost(&self, items: &[EventItem]) -> bool {
        self.number.is_some_and(|number| items.get(self.table.selected).is_none_or(|item| item.event.number != number))
    }

    /// Whether the cursor stays on the first row.
    pub fn follows(&self) -> bool {
        self.number.is_none()
    }
}

/// The row of an event; if it is not there, that of the one closest to it.
fn row_of(items: &[EventItem], number: u64) -> usize {
    let distance = |item: &EventItem| item.event.number.abs_diff(number);
    (0..items.len()).min_by_key(|row| distance(&items[*row])).unwrap_or(0)
}

/// The columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventColumn {
    /// Which event it is.
    Number,
    /// When.
    Time,
    /// What happened.
    Kind,
    /// How much.
    Bytes,
    /// The device.
    Device,
    /// The thread.
    Thread,
    /// Where.
    Address,
    /// What the program was doing.
    Phase,
    /// Who asked.
    Who,
}

impl Column for EventColumn {
    type Row = EventItem;

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
            Self::Who => "who asked",
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
        let is_of_memory = !matches!(event.kind, EventKind::Step | EventKind::End);
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

impl App {
    /// The rows of the table: the events that pass the filter, the latest first unless sorted otherwise.
    pub fn event_items(&self) -> Vec<EventItem> {
        let Some(process) = self.process() else { return Vec::new() };
        let item = |event: &EventView| EventItem {
            event: event.clone(),
            names: process.names.clone(),
            device: if event.device < 0 { "host".to_owned() } else { event.device.to_string() },
            line: process
                .names
                .lines
                .get(&event.stack)
                .map_or_else(String::new, |line| place(line, &process.header.directory)),
        };
        let mut items: Vec<_> = process.events.iter().map(item).filter(|item| self.filter.passes(item)).collect();
        items.sort_by(|a, b| self.events.table.compare(a, b, self.moment));
        items
    }

    /// Puts the cursor in time at the event under the cursor of the table.
    pub(super) fn go_to_selected_event(&mut self) {
        let items = self.event_items();
        self.events.follow(&items);
        if let Some(item) = items.get(self.events.table.selected) {
            self.go_to_event(item.event.number, item.event.time);
        }
    }
}
