//! State of the mover, for `memlab ps` and the control socket.

use std::time::Duration;

use serde_json::{Value, json};

use super::operation::NOT_STARTED_FOR_IT;
use super::progress::{self, Progress};
use crate::cuda::driver_memory;
use interpose_driver::vmm::allocations::MIN_MOVABLE_BYTES;
use interpose_driver::vmm::totals::{self, LastTotals};
use interpose_driver::vmm::{gate, mode};
use memlab_protocol::status::{MoveState, MoveStatus, OperationKind};

/// Status as the socket reports it.
///
/// Omits figures of memory that cannot move, or that the driver has taken.
pub fn described(status: &MoveStatus) -> Value {
    let has_figures = status.enabled && status.state != MoveState::Checkpointed;
    let mut described = json!(status);
    if let Some(keys) = described.as_object_mut() {
        keys.retain(|key, value| match key.as_str() {
            "enabled" | "state" => true,
            "why_not" => !value.is_null(),
            _ => has_figures,
        });
    }
    described
}

pub fn status() -> MoveStatus {
    let enabled = mode::is_enabled();
    if progress::is_checkpointed() {
        return MoveStatus { enabled, state: MoveState::Checkpointed, ..MoveStatus::default() };
    }
    if !enabled {
        return MoveStatus { why_not: Some(NOT_STARTED_FOR_IT.to_owned()), ..MoveStatus::default() };
    }
    let operation = *progress::current();
    let running = operation.filter(|operation| operation.is_running()).map(|operation| operation.kind);
    // While bytes are copied the tables are locked for long; a status request does not wait for that.
    let timeout = if running.is_some() { Duration::ZERO } else { Duration::from_millis(200) };
    let LastTotals { totals, arena_bytes } = totals::latest(timeout);
    MoveStatus {
        enabled,
        state: match running {
            Some(OperationKind::Offload) => MoveState::Offloading,
            Some(OperationKind::Restore) => MoveState::Restoring,
            Some(_) => MoveState::Moving,
            None if gate::is_closed() => MoveState::Offloaded,
            None if totals.host_bytes > 0 => MoveState::PartlyOffloaded,
            None => MoveState::Resident,
        },
        why_not: None,
        device_bytes: totals.device_bytes,
        host_bytes: totals.host_bytes,
        // Other driver allocations of the program: small ones, stream-ordered ones, arrays, managed memory.
        fixed_bytes: totals.fixed_bytes + driver_memory::held_bytes().saturating_sub(totals.backed_bytes),
        arena_bytes,
        page_bytes: MIN_MOVABLE_BYTES,
        operation: operation.map(Progress::describe),
    }
}
