//! The columns of the processes.

use std::cmp::Ordering;

use signal_hook::low_level::signal_name;

use super::item::ProcessItem;
use crate::format::Units;
use crate::snapshot::ProcessState;
use crate::widgets::columns::{Column, bytes_text};

/// The columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessColumn {
    /// The process id.
    Process,
    /// The rank.
    Rank,
    /// Whether it still writes.
    State,
    /// The device.
    Device,
    /// Handed out.
    Allocated,
    /// The most of that.
    Peak,
    /// Held by the allocator.
    Reserved,
    /// The device's use.
    Used,
    /// Steps ended.
    Steps,
    /// Out-of-memories.
    Ooms,
    /// What it runs.
    Command,
}

impl Column for ProcessColumn {
    type Item = ProcessItem;

    const ALL: &'static [Self] = &[
        Self::Process,
        Self::Rank,
        Self::State,
        Self::Device,
        Self::Allocated,
        Self::Peak,
        Self::Reserved,
        Self::Used,
        Self::Steps,
        Self::Ooms,
        Self::Command,
    ];

    fn title(self) -> &'static str {
        match self {
            Self::Process => "pid",
            Self::Rank => "rank",
            Self::State => "state",
            Self::Device => "device",
            Self::Allocated => "allocated",
            Self::Peak => "peak",
            Self::Reserved => "reserved",
            Self::Used => "dev. used",
            Self::Steps => "steps",
            Self::Ooms => "ooms",
            Self::Command => "command",
        }
    }

    fn columns(self) -> u16 {
        match self {
            Self::Process => 9,
            Self::Rank | Self::Ooms => 5,
            Self::State => 12,
            Self::Device | Self::Steps => 7,
            Self::Command => 0,
            _ => 10,
        }
    }

    fn shown_from(self) -> u16 {
        match self {
            Self::Steps => 84,
            Self::Reserved => 100,
            Self::Ooms => 110,
            Self::Used => 130,
            _ => 0,
        }
    }

    fn figure(self, row: &ProcessItem) -> Option<f64> {
        match self {
            Self::Allocated => Some(row.allocated_bytes as f64),
            Self::Peak => Some(row.peak_allocated_bytes as f64),
            Self::Reserved => Some(row.reserved_bytes as f64),
            Self::Used => Some(row.used_bytes as f64),
            Self::Steps => Some(row.steps_ended as f64),
            Self::Ooms => Some(row.oom_count as f64),
            // In the order of ranks, as names are.
            _ => None,
        }
    }

    fn compare_names(a: &ProcessItem, b: &ProcessItem) -> Ordering {
        a.order.cmp(&b.order)
    }

    fn text(self, row: &ProcessItem, units: Units) -> String {
        match self {
            Self::Process if row.depth > 0 => format!("└{}", row.pid),
            Self::Process => row.pid.to_string(),
            Self::Rank => row.rank.map(|rank| rank.to_string()).unwrap_or_default(),
            Self::State => row.moved.map_or_else(|| state_word(row.state), str::to_owned),
            Self::Device => row.device.split(' ').next().unwrap_or_default().to_owned(),
            Self::Allocated => bytes_text(row.allocated_bytes, units),
            Self::Peak => bytes_text(row.peak_allocated_bytes, units),
            Self::Reserved => bytes_text(row.reserved_bytes, units),
            Self::Used => bytes_text(row.used_bytes, units),
            Self::Steps if row.steps_ended == 0 => "–".to_owned(),
            Self::Steps => row.steps_ended.to_string(),
            Self::Ooms if row.oom_count == 0 => "–".to_owned(),
            Self::Ooms => row.oom_count.to_string(),
            Self::Command => String::new(),
        }
    }
}

/// A state in the column's width.
fn state_word(state: ProcessState) -> String {
    match state {
        ProcessState::Ended { signal: Some(signal), .. } => {
            signal_name(signal).map_or_else(|| format!("signal {signal}"), str::to_owned)
        }
        state => state.short(),
    }
}
