//! Which screens the dashboard has.

use clap::ValueEnum;
use serde::Deserialize;

use memlab_base::query::Detail;

/// One of the screens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Screen {
    /// All at a glance.
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
    /// One event after the other.
    Events,
    /// All ranks, or processes, and their devices, over time.
    #[value(alias = "processes")]
    #[serde(alias = "processes")]
    Ranks,
    /// Where the GPU's time goes.
    Time,
    /// What the program prints.
    Output,
}

impl Screen {
    /// All of them, in the order of their tabs.
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

    /// Its name on its tab.
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

    /// Its name on a narrow terminal.
    pub fn short_title(self) -> &'static str {
        match self {
            Self::Overview => "Over",
            Self::Segments => "Segs",
            Self::Output => "Out",
            screen => screen.title(),
        }
    }

    /// What it shows beyond what every snapshot has.
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

/// A table of the screen of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeTable {
    #[default]
    Layers,
    Kernels,
    /// And fills.
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

    /// Its name for the footer.
    pub fn title(self) -> &'static str {
        match self {
            Self::Layers => "layers",
            Self::Kernels => "kernels",
            Self::Copies => "copies",
        }
    }
}
