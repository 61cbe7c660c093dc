//! The screens of the dashboard.

use clap::ValueEnum;
use serde::Deserialize;

use memlab_base::query::Detail;

/// A screen of the dashboard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Screen {
    /// Everything at a glance.
    #[default]
    Overview,
    /// Memory by Python line.
    Lines,
    /// Memory by layer.
    Layers,
    /// The allocator's segments and the blocks in them.
    Segments,
    /// Memory by optimizer step.
    Steps,
    /// Events, one by one.
    Events,
    /// All ranks or processes and their devices, over time.
    #[value(alias = "processes")]
    #[serde(alias = "processes")]
    Ranks,
    /// GPU time by layer, kernel and copy.
    Time,
    /// Output of the program.
    Output,
}

impl Screen {
    /// All screens, in the order of their tabs.
    pub const ALL: [Self; 9] = [
        Self::Overview,
        Self::Lines,
        Self::Layers,
        Self::Segments,
        Self::Steps,
        Self::Events,
        Self::Ranks,
        Self::Time,
        Self::Output,
    ];

    /// Name on the tab.
    pub fn title(self) -> &'static str {
        match self {
            Self::Overview => "Overview",
            Self::Lines => "Lines",
            Self::Layers => "Layers",
            Self::Segments => "Segments",
            Self::Steps => "Steps",
            Self::Events => "Events",
            Self::Ranks => "Ranks",
            Self::Time => "Time",
            Self::Output => "Output",
        }
    }

    /// Name on a narrow terminal.
    pub fn short_title(self) -> &'static str {
        match self {
            Self::Overview => "Over",
            Self::Segments => "Segs",
            Self::Output => "Out",
            screen => screen.title(),
        }
    }

    /// Detail that the screen needs beyond the content of every snapshot.
    pub fn detail(self) -> Detail {
        match self {
            Self::Lines => Detail::Calls,
            Self::Time => Detail::Time,
            Self::Segments => Detail::Segments,
            Self::Events => Detail::Events,
            _ => Detail::None,
        }
    }
}

/// A table beside others on a screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TablePane {
    Overview(OverviewTable),
    Time(TimeTable),
}

/// A table of the overview.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OverviewTable {
    /// The lines.
    #[default]
    Lines,
    /// The layers.
    Layers,
}

/// A table of the GPU time screen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeTable {
    #[default]
    Layers,
    Kernels,
    /// Copies and fills.
    Copies,
}

impl TimeTable {
    pub fn next(self) -> Self {
        match self {
            Self::Layers => Self::Kernels,
            Self::Kernels => Self::Copies,
            Self::Copies => Self::Layers,
        }
    }

    /// Name for the footer.
    pub fn title(self) -> &'static str {
        match self {
            Self::Layers => "layers",
            Self::Kernels => "kernels",
            Self::Copies => "copies",
        }
    }
}
