//! The state of a process's GPU memory, as the control socket reports it.

use serde::{Deserialize, Serialize};

/// Where a process's GPU memory is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MoveStatus {
    /// Whether memlab can move it; otherwise only `state` and `why_not` are set.
    pub enabled: bool,
    /// Where it is.
    pub state: MoveState,
    /// Why memlab cannot move it.
    pub why_not: Option<String>,
    /// What memlab can move and is on the devices.
    pub device_bytes: u64,
    /// What it has moved to host memory, or spilled there.
    pub host_bytes: u64,
    /// Device memory that it knows of and cannot move.
    pub fixed_bytes: u64,
    /// Pinned host memory that it keeps for moving.
    pub arena_bytes: u64,
    /// Memory moves in whole pages of this size.
    pub page_bytes: u64,
    /// What runs, or ran last.
    pub operation: Option<Operation>,
}

/// Where GPU memory can be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MoveState {
    /// On the devices.
    #[default]
    Resident,
    /// On its way to the host.
    Offloading,
    /// On the host; the program waits.
    Offloaded,
    /// On its way back.
    Restoring,
    /// Parts are on their way; the program runs.
    Moving,
    /// Parts are on the host; the program runs.
    PartlyOffloaded,
    /// With the driver; the program waits.
    Checkpointed,
    /// Somewhere that this memlab does not know of.
    #[serde(other)]
    Unknown,
}

impl MoveState {
    /// Whether something runs.
    pub fn is_busy(self) -> bool {
        matches!(self, Self::Offloading | Self::Restoring | Self::Moving)
    }

    /// The activity of a process whose memory is in this state.
    pub fn activity(self) -> &'static str {
        match self {
            Self::Resident => "recording",
            Self::PartlyOffloaded => "partly offloaded",
            other => other.short(),
        }
    }

    /// In a word or two of at most twelve columns.
    pub fn short(self) -> &'static str {
        match self {
            Self::Resident => "resident",
            Self::Offloading => "offloading",
            Self::Offloaded => "offloaded",
            Self::Restoring => "restoring",
            Self::Moving => "moving",
            Self::PartlyOffloaded => "partly off",
            Self::Checkpointed => "checkpointed",
            Self::Unknown => "unknown",
        }
    }
}

/// Something that moves memory, or did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Operation {
    /// Its number in the process.
    pub id: u64,
    /// What it does.
    pub kind: OperationKind,
    /// How far it is.
    pub phase: OperationPhase,
    /// Copied so far.
    pub done_bytes: u64,
    /// To be copied.
    pub total_bytes: u64,
    /// How long it has taken.
    pub seconds: f64,
    /// How long of that it has copied.
    pub copy_seconds: f64,
    /// Why it failed, and what to do.
    pub error: Option<String>,
    /// What else there is to say.
    pub note: Option<String>,
    /// Whether it failed only because the device is full.
    pub retryable: bool,
}

/// What an operation does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperationKind {
    /// Moves all to the host.
    #[default]
    Offload,
    /// Brings all back.
    Restore,
    /// Moves parts to the host.
    Move,
    /// Something that this memlab does not know of.
    #[serde(other)]
    Unknown,
}

impl OperationKind {
    /// The name of the request that starts it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Offload => "offload",
            Self::Restore => "restore",
            Self::Move => "move",
            Self::Unknown => "unknown",
        }
    }

    /// While it runs.
    pub fn doing(self) -> &'static str {
        match self {
            Self::Offload => "offloading",
            Self::Restore => "restoring",
            Self::Move | Self::Unknown => "moving",
        }
    }

    /// When it is done.
    pub fn done(self) -> &'static str {
        match self {
            Self::Offload => "offloaded",
            Self::Restore => "restored",
            Self::Move | Self::Unknown => "moved",
        }
    }
}

/// How far an operation is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperationPhase {
    /// For the program's next launch.
    #[default]
    Waiting,
    /// For the device to finish its work.
    Synchronising,
    /// Host memory, or device memory, is being had.
    Preparing,
    /// Bytes move.
    Copying,
    /// What was copied is given back.
    Releasing,
    /// It has ended well.
    Done,
    /// It has failed.
    Failed,
    /// Something that this memlab does not know of.
    #[serde(other)]
    Unknown,
}

impl OperationPhase {
    /// Whether nothing more will come.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Done | Self::Failed)
    }

    /// In a few words.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting for the program's next launch",
            Self::Synchronising => "waiting for the device to finish its work",
            Self::Preparing => "preparing memory",
            Self::Copying => "copying",
            Self::Releasing => "releasing memory",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Unknown => "working",
        }
    }
}

impl Operation {
    /// How much of it is done, from 0 to 1.
    pub fn share(&self) -> f64 {
        if self.total_bytes == 0 { 0.0 } else { (self.done_bytes as f64 / self.total_bytes as f64).min(1.0) }
    }

    /// How fast it copies, in 10⁹ bytes a second: `19.8 GB/s`; `None`: it has not copied for a measurable time.
    pub fn rate(&self) -> Option<String> {
        let rate = self.done_bytes as f64 / self.copy_seconds / 1e9;
        (self.done_bytes > 0 && rate.is_finite() && rate > 0.0).then(|| match rate {
            ..99.95 => format!("{rate:.1} GB/s"),
            rate => format!("{rate:.0} GB/s"),
        })
    }
}

/// The limit of one device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LimitStatus {
    /// The CUDA ordinal.
    pub device: i32,
    /// How much the process may have.
    #[serde(default)]
    pub limit_bytes: Option<u64>,
    /// How much it has.
    #[serde(default)]
    pub used_bytes: u64,
    /// How much of its memory is in host memory because of the limit.
    #[serde(default)]
    pub spilled_bytes: u64,
    /// What happens at the limit.
    #[serde(default)]
    pub on_limit: OnLimit,
}

/// What happens when a process reaches its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnLimit {
    /// The allocation fails, as on a full device.
    #[default]
    Oom,
    /// The memory is taken on the host, where kernels reach it slowly.
    Spill,
    /// Something that this memlab does not know of.
    #[serde(other)]
    Unknown,
}

impl OnLimit {
    /// `oom` or `spill`.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Oom, Self::Spill].into_iter().find(|on_limit| text == on_limit.as_str())
    }

    pub const fn spilling(spills: bool) -> Self {
        if spills { Self::Spill } else { Self::Oom }
    }

    /// As it is written.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Oom => "oom",
            Self::Spill => "spill",
            Self::Unknown => "unknown",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_newer_memlab_says_is_read_as_far_as_it_goes() {
        // GIVEN a status with states, phases and keys that this memlab does not know, and others left out
        let text = r#"{"enabled":true,"state":"teleported","warp":9,"operation":{"id":3,"kind":"beam","phase":"x"}}"#;
        // WHEN read THEN what is known is there
        let status: MoveStatus = serde_json::from_str(text).unwrap();
        let operation = status.operation.unwrap();
        assert_eq!((status.state, status.device_bytes), (MoveState::Unknown, 0));
        assert_eq!(
            (operation.kind, operation.phase, operation.retryable),
            (OperationKind::Unknown, OperationPhase::Unknown, false)
        );
        // AND where memlab cannot move it, only that
        let status: MoveStatus =
            serde_json::from_str(r#"{"enabled":false,"state":"resident","why_not":"started without --offload"}"#)
                .unwrap();
        assert_eq!(status.why_not.as_deref(), Some("started without --offload"));
    }

    #[test]
    fn figures_out_of_this_world_stay_figures() {
        let operation =
            Operation { done_bytes: u64::MAX, total_bytes: 1, copy_seconds: 1e-300, ..Operation::default() };
        assert_eq!((operation.share(), operation.rate()), (1.0, None));
        let operation = Operation { done_bytes: 5, copy_seconds: -1.0, ..Operation::default() };
        assert_eq!((operation.share(), operation.rate()), (0.0, None));
        let operation = Operation { done_bytes: 4 << 30, copy_seconds: 0.217, ..Operation::default() };
        assert_eq!(operation.rate().unwrap(), "19.8 GB/s");
    }
}
