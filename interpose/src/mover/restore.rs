//! Restore: all memory comes back to its previous place.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use memlab_units::format::size;

use super::mappings::remap_lost;
use super::progress::{Failure, Progress};
use super::quiesce::{ClosedGate, quiesce};
use super::returning_pieces::{ReturningPiece, return_all};
use crate::limit::admission;
use interpose_driver::calls::{self, Code};
use interpose_driver::vmm::arena::ARENA;
use interpose_driver::vmm::movable_memory::{MOVABLE_MEMORY, MovableMemory};
use interpose_driver::vmm::physical::PhysicalPlace;
use interpose_driver::vmm::{contexts, gate};
use memlab_protocol::status::OperationPhase;

pub const NOTHING_TO_RESTORE: &str = "nothing is offloaded: nothing to restore";

/// Brings all memory back.
///
/// All physical memory is created first: if a device is full, nothing changes.
pub fn restore(progress: &Progress, timeout: Duration, free_host: bool) -> Result<Option<String>, Failure> {
    let contexts = contexts::all();
    let closed = match ClosedGate::as_found() {
        Some(closed) => closed,
        None => {
            progress.enter(OperationPhase::Waiting);
            quiesce(&contexts, Instant::now() + timeout, || progress.enter(OperationPhase::Synchronising))?
        }
    };
    // Queried before the tables are locked: the limit reads them to determine the bytes in use.
    let room = (0..calls::device_count()).map(|device| (device, admission::room(device))).collect();
    let mut memory = MOVABLE_MEMORY.lock();
    let outcome = restore_pieces(&mut memory, progress, &contexts, room);
    if memory.is_waiting() {
        closed.stay_closed();
    } else if free_host && outcome.is_ok() {
        ARENA.lock().shrink();
    }
    outcome
}

/// Restores the pieces of all devices.
///
/// `room` is the number of bytes on each device that the limits leave.
fn restore_pieces(
    memory: &mut MovableMemory,
    progress: &Progress,
    contexts: &[u64],
    room: BTreeMap<i32, u64>,
) -> Result<Option<String>, Failure> {
    progress.enter(OperationPhase::Preparing);
    if let Some(&context) = contexts.first() {
        calls::set_context(context).map_err(calls::context_error)?;
    }
    if memory.totals().host_bytes == 0 && !memory.is_waiting() {
        return Ok(None); // All memory is back, or was freed.
    }
    if contexts.is_empty() {
        return Err("the program's CUDA context has ended: nothing to restore".into());
    }
    remap_lost(memory)?;
    let (returns, left) = create_all(memory, Some(room))?;
    progress.begin_copying(returns.iter().map(|it| it.bytes).sum());
    return_all(memory, returns, progress).map_err(restore_failure)?;
    Ok((left > 0).then(|| format!("{} stay in host memory: the device has no room for them", size(left))))
}

fn restore_failure(code: Code) -> Failure {
    Failure::retryable(format!("restoring memory failed ({code}): the rest stays in host memory, try again"))
}

/// Undoes an offload that failed halfway.
///
/// A context must be current.
pub(super) fn restore_moved_pieces(memory: &mut MovableMemory, progress: &Progress) -> Result<(), Failure> {
    remap_lost(memory)?;
    let (returns, _) = create_all(memory, None)?;
    return_all(memory, returns, progress).map_err(restore_failure)
}

/// Creates physical memory for every piece that is not on its device.
///
/// Without `room`, only for those that the program waits for. Also returns the number of bytes that found no room, though
/// the program can run with them in host memory.
fn create_all(memory: &MovableMemory, room: Option<BTreeMap<i32, u64>>) -> Result<(Vec<ReturningPiece>, u64), Failure> {
    let mut returns: Vec<ReturningPiece> = Vec::new();
    let mut left = 0;
    // First the memory that the program waits for, which it had before. The rest comes back only within the device's limit.
    let passes: &[bool] = if room.is_some() { &[true, false] } else { &[true] };
    let mut room = room.unwrap_or_default();
    for &waited_for in passes {
        for (&number, physical) in &memory.physicals {
            for (index, piece) in physical.pieces.iter().enumerate() {
                match piece.place {
                    PhysicalPlace::Arena(_) if waited_for => {}
                    PhysicalPlace::Host(_) if !waited_for => {}
                    _ => continue,
                }
                let bytes = piece.bytes;
                let room = room.entry(physical.device).or_insert(u64::MAX);
                if !waited_for && bytes > *room {
                    left += bytes;
                    continue;
                }
                *room = room.saturating_sub(bytes);
                match calls::create(bytes, &physical.properties) {
                    Ok(handle) => {
                        returns.push(ReturningPiece::new(number, index, bytes, handle, true));
                    }
                    Err(Code::OUT_OF_MEMORY) if !waited_for => left += bytes,
                    Err(code) => {
                        returns.into_iter().for_each(ReturningPiece::undo);
                        let bytes = size(memory.totals().host_bytes);
                        return Err(match code {
                            Code::OUT_OF_MEMORY => Failure::retryable(format!(
                                "the device has no room for {bytes}: all memory stays on the host, try again when memory \
                                 is free"
                            )),
                            code => format!("the driver gave no device memory ({code}): all memory stays on the host")
                                .into(),
                        });
                    }
                }
            }
        }
    }
    if returns.is_empty() && left > 0 {
        return Err(Failure::retryable(format!(
            "the device has no room for {}: it stays in host memory, try again when memory is free",
            size(left)
        )));
    }
    Ok((returns, left))
}

/// Returns true if an operation may be needed to restore memory, judged without waiting.
///
/// The program may have freed all of it in the meantime, and still waits to be woken. Memory that came back may have left
/// host memory to release.
pub fn could_restore(free_host: bool) -> bool {
    gate::is_closed()
        || MOVABLE_MEMORY.try_lock().is_none_or(|memory| memory.totals().host_bytes > 0)
        || free_host && ARENA.try_lock().is_none_or(|arena| arena.bytes() > 0)
}
