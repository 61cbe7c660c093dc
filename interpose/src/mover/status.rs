//! The state of the mover, for `memlab ps` and the control socket.

use std::time::Duration;

use serde_json::{Value, json};

use super::operation::NOT_STARTED_FOR_IT;
use super::progress::{self, Progress};
use crate::cuda::driver_memory;
use interpose_driver::vmm::allocations::MIN_MOVABLE_BYTES;
use interpose_driver::vmm::totals::{self, LastTotals};
use interpose_driver::vmm::{gate, mode};

/// The state in one or two words, for a table, and in full.
pub fn status() -> (&'static str, Value) {
    if progress::is_checkpointed() {
        return ("checkpointed", json!({"enabled": mode::is_enabled(), "state": "checkpointed"}));
    }
    if !mode::is_enabled() {
        return ("recording", json!({"enabled": false, "state": "resident", "why_not": NOT_STARTED_FOR_IT}));
    }
    let operation = *progress::current();
    let running = operation.filter(|operation| operation.is_running()).map(|operation| operation.kind);
    // While bytes are copied the tables are locked for long, and a status request does not wait for that.
    let timeout = if running.is_some() { Duration::ZERO } else { Duration::from_millis(200) };
    let LastTotals { totals, arena_bytes } = totals::latest(timeout);
    // The driver's other allocations for the program: small ones, stream-ordered ones, arrays, managed memory.
    let fixed_bytes = totals.fixed_bytes + driver_memory::held_bytes().saturating_sub(totals.backed_bytes);
    let state = match running {
        Some("offload") => "offloading",
        Some("restore") => "restoring",
        Some(_) => "moving",
        None if gate::is_closed() => "offloaded",
        None if totals.host_bytes > 0 => "partly_offloaded",
        None => "resident",
    };
    let word = match state {
        "resident" => "recording",
        "partly_offloaded" => "partly offloaded",
        other => other,
    };
    let status = json!({
        "enabled": true,
        "state": state,
        "device_bytes": totals.device_bytes,
        "host_bytes": totals.host_bytes,
        "fixed_bytes": fixed_bytes,
        "arena_bytes": arena_bytes,
        "page_bytes": MIN_MOVABLE_BYTES,
        "operation": operation.map(Progress::describe),
    });
    (word, status)
}
