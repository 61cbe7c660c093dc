//! The columns of the ranks.

use std::cmp::Ordering;

use signal_hook::low_level::signal_name;

use super::item::RankItem;
use crate::size_units::Units;
use crate::widgets::columns::{Column, bytes_text};
use memlab_follow::snapshot::ProcessState;

/// Columns of the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankColumn {
    /// Rank.
    Rank,
    /// Process id.
    Process,
    /// Host.
    Host,
    /// State of the process.
    State,
    /// Device.
    Device,
    /// Allocated bytes.
    Allocated,
    /// Peak of the allocated bytes.
    Peak,
    /// Excess of the peak over the median rank's.
    OverMedian,
    /// Growth after each step.
    Growth,
    /// Bytes reserved by the allocator.
    Reserved,
    /// Bytes in use on the device.
    Used,
    /// Number of steps ended.
    Steps,
    /// Number of out-of-memory errors.
    Ooms,
    /// Command.
    Command,
}

impl Column for RankColumn {
    type Item = RankItem;

    const ALL: &'static [Self] = &[
        Self::Rank,
        Self::Process,
        Self::Host,
        Self::State,
        Self::Device,
        Self::Allocated,
        Self::Peak,
        Self::OverMedian,
        Self::Growth,
        Self::Reserved,
        Self::Used,
        Self::Steps,
        Self::Ooms,
        Self::Command,
    ];

    fn title(self) -> &'static str {
        match self {
            Self::Rank => "rank",
            Self::Process => "pid",
            Self::Host => "host",
            Self::State => "state",
            Self::Device => "device",
            Self::Allocated => "allocated",
            Self::Peak => "peak",
            Self::OverMedian => "vs median",
            Self::Growth => "per step",
            Self::Reserved => "reserved",
            Self::Used => "in use",
            Self::Steps => "steps",
            Self::Ooms => "ooms",
            Self::Command => "command",
        }
    }

    fn columns(self) -> u16 {
        match self {
            Self::Rank | Self::Ooms => 5,
            Self::Process => 9,
            Self::State => 12,
            Self::Device | Self::Steps => 7,
            Self::Command => 0,
            Self::OverMedian => 11,
            _ => 10,
        }
    }

    fn shown_from(self) -> u16 {
        match self {
            Self::OverMedian => 100,
            Self::Growth => 112,
            Self::Host => 134,
            Self::Steps => 142,
            Self::Process => 150,
            Self::Device => 158,
            Self::Ooms => 164,
            Self::Reserved => 176,
            Self::Used => 188,
            _ => 0,
        }
    }

    fn figure(self, row: &RankItem) -> Option<f64> {
        match self {
            Self::Allocated => Some(row.allocated_bytes as f64),
            Self::Peak => Some(row.peak_allocated_bytes as f64),
            Self::OverMedian => Some(row.over_median_bytes.unwrap_or(0) as f64),
            Self::Growth => Some(row.growth_per_step.unwrap_or(0.0)),
            Self::Reserved => Some(row.reserved_bytes as f64),
            Self::Used => Some(row.used_bytes as f64),
            Self::Steps => Some(row.steps_ended as f64),
            Self::Ooms => Some(row.oom_count as f64),
            // Sorted by rank, like names.
            _ => None,
        }
    }

    fn compare_names(a: &RankItem, b: &RankItem) -> Ordering {
        a.order.cmp(&b.order)
    }

    fn compare_texts(self, a: &RankItem, b: &RankItem) -> Ordering {
        match self {
            Self::Host => a.host.cmp(&b.host),
            // Failed processes first, then running ones.
            Self::State => state_order(b.state).cmp(&state_order(a.state)),
            Self::Process => a.pid.cmp(&b.pid).then_with(|| a.host.cmp(&b.host)),
            Self::Command => a.command.cmp(&b.command),
            _ => Ordering::Equal,
        }
    }

    fn text(self, row: &RankItem, units: Units) -> String {
        match self {
            Self::Rank => row.rank.map(|rank| rank.to_string()).unwrap_or_default(),
            Self::Process if row.depth > 0 => format!("└{}", row.pid),
            Self::Process => row.pid.to_string(),
            Self::Host => row.host.clone(),
            Self::State => row.moved.map_or_else(|| state_word(row.state), str::to_owned),
            Self::Device => row.device.split(' ').next().unwrap_or_default().to_owned(),
            Self::Allocated if row.is_about => format!("~{}", bytes_text(row.allocated_bytes, units)),
            Self::Allocated => bytes_text(row.allocated_bytes, units),
            Self::Peak => bytes_text(row.peak_allocated_bytes, units),
            Self::OverMedian => match row.over_median_bytes {
                None => String::new(),
                Some(0) => "–".to_owned(),
                Some(over @ 1..) => format!("+{}", bytes_text(over.unsigned_abs(), units)),
                Some(under) => format!("-{}", bytes_text(under.unsigned_abs(), units)),
            },
            Self::Growth => match row.growth_per_step {
                None => String::new(),
                Some(bytes) => bytes_text(bytes.max(0.0) as u64, units),
            },
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

/// Columns that fit a table of this width and distinguish its rows.
///
/// Ranks are identified by their numbers, other processes by their ids.
pub fn columns_for(rows: &[RankItem], width: u16) -> Vec<RankColumn> {
    let has_ranks = rows.iter().any(|row| row.rank.is_some());
    let has_others = rows.iter().any(|row| row.rank.is_none());
    let has_several_devices = rows.windows(2).any(|pair| pair[0].of.process == pair[1].of.process);
    let is_shown = |column: &RankColumn| match column {
        RankColumn::Rank => has_ranks,
        RankColumn::Process if has_others => true,
        RankColumn::Device if has_several_devices || !has_ranks => true,
        column => column.shown_from() <= width,
    };
    RankColumn::ALL.iter().copied().filter(is_shown).collect()
}

/// Position of a state in the order of states.
fn state_order(state: ProcessState) -> u8 {
    match state {
        ProcessState::Unreadable => 6,
        ProcessState::Killed => 5,
        ProcessState::Ended { code: None | Some(0), signal: None } => 0,
        ProcessState::Ended { .. } => 4,
        ProcessState::Stopped => 3,
        ProcessState::Opening { .. } => 2,
        ProcessState::Recording => 1,
    }
}

/// A state, abbreviated to the column's width.
fn state_word(state: ProcessState) -> String {
    match state {
        ProcessState::Ended { signal: Some(signal), .. } => {
            signal_name(signal).map_or_else(|| format!("signal {signal}"), str::to_owned)
        }
        state => state.short(),
    }
}
