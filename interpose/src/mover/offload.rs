//! Offload: all movable device memory goes to pinned host memory, and the program waits.

use std::time::{Duration, Instant};

use memlab_units::format::size;

use super::copy;
use super::leaving_pieces;
use super::progress::{Failure, Progress};
use super::quiesce::quiesce;
use super::restore::restore_moved_pieces;
use super::staging::{begin_to_secure, refuse_beside_storage};
use interpose_driver::pools;
use interpose_driver::vmm::arena::ARENA;
use interpose_driver::vmm::contexts;
use interpose_driver::vmm::movable_memory::{MOVABLE_MEMORY, MovableMemory};
use interpose_driver::vmm::physical::PhysicalPlace;
use memlab_protocol::status::OperationPhase;

pub const NOTHING_TO_MOVE: &str = "the program has no device memory to move (pieces below 2 MiB, and memory of \
    cudaMallocAsync, cannot be moved)";
/// Moves everything to the arena.
///
/// The gate stays closed.
pub fn offload(progress: &Progress, timeout: Duration) -> Result<Option<String>, Failure> {
    refuse_beside_storage()?;
    let contexts = contexts::all();
    // Host memory takes longest. So threads pin it from now on, and copies into finished regions begin at once.
    progress.enter(OperationPhase::Preparing);
    // Stream-ordered memory cannot be moved, but the unused memory of pools can be released.
    pools::trim_all();
    let (bytes, mapped) = {
        let memory = MOVABLE_MEMORY.lock();
        (movable(&memory)?.bytes, memory.mapped_host_bytes())
    };
    begin_to_secure(bytes, mapped, &contexts)?;
    let begun = ARENA.lock().pending();
    progress.enter(OperationPhase::Waiting);
    let deadline = Instant::now() + timeout;
    let closed = quiesce(&contexts, deadline, || progress.enter(OperationPhase::Synchronising))?;
    let mut memory = MOVABLE_MEMORY.lock();
    let memory = &mut *memory;
    let moving = movable(memory)?;
    begin_to_secure(moving.bytes, memory.mapped_host_bytes(), &contexts)?; // For memory allocated in the meantime.
    let mut arena = ARENA.lock();
    // While host memory is still being pinned, the device keeps all of its memory: if the system refuses, nothing has
    // changed.
    let keeps = arena.unmade_bytes() > 0;
    if let Some(what) = begun.failure() {
        // The failed regions may have been dropped and requested again just now. A refused request is not repeated while
        // the program waits.
        drop(begun);
        arena.drop_failed();
        return Err(what.into());
    }
    let mut leaving = leaving_pieces::plan(memory, &mut arena, &moving.numbers, keeps);
    progress.begin_copying(leaving.iter().map(|it| it.bytes).sum());
    let pending = arena.pending();
    let copied = copy::run(leaving.iter_mut().map(|it| (it.context, it)), &pending, &progress.done);
    progress.enter(OperationPhase::Releasing);
    let (mut left, mut stayed) = (0, 0);
    for it in leaving {
        let bytes = it.bytes;
        match it.settle(memory, copied.is_ok()) {
            None => left += bytes,
            Some(spans) => {
                stayed += bytes;
                arena.give_back(&spans);
            }
        }
    }
    if let Err(code) = copied {
        let refused = pending.failure();
        drop(pending);
        arena.drop_failed();
        drop(arena);
        if let Err(Failure { what, .. }) = restore_moved_pieces(memory, progress) {
            closed.stay_closed();
            let there = size(left);
            return Err(Failure::retryable(format!(
                "copying to host memory failed ({code}) after {there}, and {what}: the program waits for a restore"
            )));
        }
        let copying = || format!("copying to host memory failed ({code}): nothing was moved");
        return Err(refused.unwrap_or_else(copying).into());
    }
    if left == 0 && !memory.is_waiting() {
        return Err(format!("the driver did not release {}: nothing was moved", size(stayed)).into());
    }
    closed.stay_closed();
    pools::trim_all(); // Now that all frees have taken effect.
    Ok((stayed > 0).then(|| format!("the driver did not release {}, which stay on the device", size(stayed))))
}

/// The movable memory on the devices.
struct MovablePieces {
    numbers: Vec<u64>,
    bytes: u64,
}

fn movable(memory: &MovableMemory) -> Result<MovablePieces, Failure> {
    let numbers: Vec<u64> = memory.physicals.keys().copied().filter(|&number| memory.is_movable(number)).collect();
    let pieces = numbers.iter().filter_map(|number| memory.physicals.get(number)).flat_map(|it| &it.pieces);
    let bytes = pieces.filter(|piece| matches!(piece.place, PhysicalPlace::Device(_))).map(|piece| piece.bytes).sum();
    if bytes == 0 {
        return Err(NOTHING_TO_MOVE.into());
    }
    Ok(MovablePieces { numbers, bytes })
}

/// Returns true if memory may be available to offload, judged without waiting.
pub fn could_offload() -> bool {
    pools::are_used() || MOVABLE_MEMORY.try_lock().is_none_or(|memory| movable(&memory).is_ok())
}
