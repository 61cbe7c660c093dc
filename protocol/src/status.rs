//! The state of a process's GPU memory, as the control socket reports it.

use serde::{Deserialize, Serialize};

/// Location of a process's GPU memory, and the operation that moves it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MoveStatus {
    /// True if memlab can move the memory; otherwise only `state` and `why_not` are set.
    pub enabled: bool,
    /// Location of the memory.
    pub state: MoveState,
    /// Reason why memlab cannot move the memory.
    pub why_not: Option<String>,
    /// Movable bytes on the devices.
    pub device_bytes: u64,
    /// Bytes moved or spilled to host memory.
    pub host_bytes: u64,
    /// Bytes of known device memory that memlab cannot move.
    pub fixed_bytes: u64,
    /// Bytes of pinned host memory kept for moving.
    pub arena_bytes: u64,
    /// Page size in bytes; memory moves in whole pages.
    pub page_bytes: u64,
    /// Running operation, or the last one.
    pub operation: Option<Operation>,
}

/// Locations of GPU memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MoveState {
    /// On the devices.
    #[default]
    Resident,
    /// Moving to the host.
    Offloading,
    /// On the host; the program waits.
    Offloaded,
    /// Moving back to the devices.
    Restoring,
    /// Parts are moving; the program runs.
    Moving,
    /// Parts are on the host; the program runs.
    PartlyOffloaded,
    /// Held by the driver; the program waits.
    Checkpointed,
    /// Unknown state of a newer memlab.
    #[serde(other)]
    Unknown,
}

impl MoveState {
    /// Returns true while an operation runs.
    pub fn is_busy(self) -> bool {
        matches!(self, Self::Offloading | Self::Restoring | Self::Moving)
    }

    /// Returns the activity of a process whose memory is in this state.
    pub fn activity(self) -> &'static str {
        match self {
            Self::Resident => "recording",
            Self::PartlyOffloaded => "partly offloaded",
            other => other.short(),
        }
    }

    /// Returns a word or two of at most twelve columns.
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

/// An operation that moves memory, running or over.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Operation {
    /// Number of the operation in the process.
    pub id: u64,
    /// Kind of the operation.
    pub kind: OperationKind,
    /// Phase of the operation.
    pub phase: OperationPhase,
    /// Bytes copied.
    pub done_bytes: u64,
    /// Bytes to copy.
    pub total_bytes: u64,
    /// Elapsed seconds.
    pub seconds: f64,
    /// Seconds spent copying.
    pub copy_seconds: f64,
    /// Reason of the failure, with a remedy.
    pub error: Option<String>,
    /// Note for the user.
    pub note: Option<String>,
    /// True if the operation failed only because the device is full.
    pub retryable: bool,
}

/// Kinds of operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperationKind {
    /// Moves all memory to the host.
    #[default]
    Offload,
    /// Moves all memory back.
    Restore,
    /// Moves parts of the memory to the host.
    Move,
    /// Unknown kind of a newer memlab.
    #[serde(other)]
    Unknown,
}

impl OperationKind {
    /// Returns the name of the request that starts the operation.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Offload => "offload",
            Self::Restore => "restore",
            Self::Move => "move",
            Self::Unknown => "unknown",
        }
    }

    /// Returns the verb form while the operation runs.
    pub fn doing(self) -> &'static str {
        match self {
            Self::Offload => "offloading",
            Self::Restore => "restoring",
            Self::Move | Self::Unknown => "moving",
        }
    }

    /// Returns the verb form of the finished operation.
    pub fn done(self) -> &'static str {
        match self {
            Self::Offload => "offloaded",
            Self::Restore => "restored",
            Self::Move | Self::Unknown => "moved",
        }
    }
}

/// Phases of an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperationPhase {
    /// Waiting for the program's next launch.
    #[default]
    Waiting,
    /// Waiting for the device to finish its work.
    Synchronising,
    /// Allocating host memory or device memory.
    Preparing,
    /// Copying bytes.
    Copying,
    /// Releasing the memory that was copied.
    Releasing,
    /// Succeeded.
    Done,
    /// Failed.
    Failed,
    /// Unknown phase of a newer memlab.
    #[serde(other)]
    Unknown,
}

impl OperationPhase {
    /// Returns true if the operation has ended.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Done | Self::Failed)
    }

    /// Returns a description in a few words.
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
    /// Returns the copied share of the operation, from 0 to 1.
    pub fn share(&self) -> f64 {
        if self.total_bytes == 0 { 0.0 } else { (self.done_bytes as f64 / self.total_bytes as f64).min(1.0) }
    }

    /// Returns the copy rate in 10⁹ bytes a second: `19.8 GB/s`; `None`: no measurable copy time yet.
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
    /// Limit of the process in bytes.
    #[serde(default)]
    pub limit_bytes: Option<u64>,
    /// Bytes that the process uses.
    #[serde(default)]
    pub used_bytes: u64,
    /// Bytes that the limit spilled to host memory.
    #[serde(default)]
    pub spilled_bytes: u64,
    /// Handling of allocations at the limit.
    #[serde(default)]
    pub on_limit: OnLimit,
}

/// Bytes of a card that stay free where memory may spill: at most 512 MiB, and at most a 32nd of the card.
///
/// The driver loads kernels there when they are first called, and libraries take memory. Without it, these calls fail.
pub fn kept_free(total: u64) -> u64 {
    const MOST: u64 = 512 << 20;
    const PART: u64 = 32;
    MOST.min(total / PART)
}

/// Handling of an allocation beyond the limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnLimit {
    /// The allocation fails, as on a full device.
    #[default]
    Oom,
    /// The memory is allocated on the host, where kernels reach it slowly.
    Spill,
    /// Unknown handling of a newer memlab.
    #[serde(other)]
    Unknown,
}

impl OnLimit {
    /// Parses `oom` or `spill`.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Oom, Self::Spill].into_iter().find(|on_limit| text == on_limit.as_str())
    }

    pub const fn spilling(spills: bool) -> Self {
        if spills { Self::Spill } else { Self::Oom }
    }

    /// Returns the name, as in JSON.
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
    fn the_known_parts_of_a_newer_status_are_read() {
        // GIVEN a status with unknown states, phases and keys, and with others left out
        let text = r#"{"enabled":true,"state":"teleported","warp":9,"operation":{"id":3,"kind":"beam","phase":"x"}}"#;
        // WHEN read THEN the known parts are set
        let status: MoveStatus = serde_json::from_str(text).unwrap();
        let operation = status.operation.unwrap();
        assert_eq!((status.state, status.device_bytes), (MoveState::Unknown, 0));
        assert_eq!(
            (operation.kind, operation.phase, operation.retryable),
            (OperationKind::Unknown, OperationPhase::Unknown, false)
        );
        // AND a status without movable memory needs no other keys
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
