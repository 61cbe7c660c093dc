//! Offload: all movable device memory goes to pinned host memory, and the program waits.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use memlab_sizes::format as size;

use super::copy::{self, Copy};
use super::mappings::{MappingError, piece_of, piece_of_mut, unmap_from_all};
use super::progress::{Failure, Phase, Progress};
use super::quiesce::quiesce;
use super::staging::{begin_to_secure, refuse_beside_storage};
use crate::cuda::{calls, pools};
use crate::vmm::arena::{ARENA, Span};
use crate::vmm::contexts;
use crate::vmm::movable_memory::{MOVABLE_MEMORY, MovableMemory};
use crate::vmm::physical::Place;

pub const NOTHING_TO_MOVE: &str = "the program holds no device memory that could be moved (pieces of 2 MiB and more can, what cudaMallocAsync hands out cannot)";
/// Moves everything to the arena. The gate stays closed.
pub fn offload(progress: &Progress, timeout: Duration) -> Result<Option<String>, Failure> {
    refuse_beside_storage()?;
    let contexts = contexts::all();
    // Host memory takes longest: threads get it from now on, and what they have is copied into at once.
    progress.enter(Phase::Preparing);
    // Stream-ordered memory cannot be moved, but the unused memory of pools can be released.
    pools::trim_all();
    let (bytes, mapped) = {
        let memory = MOVABLE_MEMORY.lock();
        (movable(&memory)?.bytes, memory.mapped_host_bytes())
    };
    begin_to_secure(bytes, mapped, &contexts)?;
    let begun = ARENA.lock().growing();
    progress.enter(Phase::Waiting);
    let deadline = Instant::now() + timeout;
    let closed = quiesce(&contexts, deadline, || progress.enter(Phase::Synchronising))?;
    let mut memory = MOVABLE_MEMORY.lock();
    let memory = &mut *memory;
    let moving = movable(memory)?;
    begin_to_secure(moving.bytes, memory.mapped_host_bytes(), &contexts)?; // For memory allocated meanwhile.
    let mut arena = ARENA.lock();
    if let Some(what) = begun.failure() {
        // It may have been dropped and begun again just now: who is refused once is not asked again while the program waits.
        drop(begun);
        arena.drop_failed();
        return Err(what.into());
    }
    let mut plan: Vec<(u64, usize, Vec<Span>)> = Vec::new();
    let mut copies: BTreeMap<u64, Vec<Copy>> = BTreeMap::new();
    for &number in &moving.numbers {
        let Some(from) = memory.reach(number) else { continue };
        let Some(physical) = memory.physicals.get(&number) else { continue };
        let context = contexts::of_device(physical.device);
        for (index, piece) in physical.pieces.iter().enumerate() {
            if !matches!(piece.place, Place::Device(_)) {
                continue;
            }
            let Some(spans) = arena.take(piece.bytes) else { continue };
            let list = copies.entry(context).or_default();
            list.extend(copy::of_spans(&spans, from + piece.offset, |to, from| Copy::ToHost { from, to }));
            plan.push((number, index, spans));
        }
    }
    progress.begin_copying(plan.iter().flat_map(|(_, _, spans)| spans).map(|span| span.bytes).sum());
    let growing = arena.growing();
    if let Err(code) = copy::run(&copies, &growing, &progress.done) {
        plan.iter().for_each(|(_, _, spans)| arena.give_back(spans));
        let failure = growing.failure();
        drop(growing);
        arena.drop_failed();
        let copying = || format!("copying to host memory failed ({code}): nothing was moved");
        return Err(failure.unwrap_or_else(copying).into());
    }
    progress.enter(Phase::Releasing);
    let mut left = 0;
    let mut stayed = 0;
    for (number, index, spans) in plan {
        let Some(piece) = piece_of(memory, number, index) else { continue };
        let (bytes, place) = (piece.bytes, piece.handle());
        let addresses = memory.addresses(number, piece.offset);
        let taken = place
            .ok_or(MappingError::NOTHING_DONE)
            .and_then(|handle| unmap_from_all(&addresses, bytes, handle).map(|()| handle));
        let Some(piece) = piece_of_mut(memory, number, index) else { continue };
        match taken {
            Ok(handle) => {
                piece.place = Place::Arena(spans);
                calls::release(handle);
                left += bytes;
            }
            Err(error) => {
                piece.lost_mapping = error.lost_mapping;
                stayed += bytes;
                arena.give_back(&spans);
            }
        }
    }
    if left == 0 && !memory.is_waiting() {
        return Err(format!("the driver did not let go of {}: nothing was moved", size(stayed)).into());
    }
    closed.stay_closed();
    pools::trim_all(); // Now that all frees have taken effect.
    Ok((stayed > 0).then(|| format!("the driver did not let go of {}, which stay", size(stayed))))
}

/// The movable memory on the devices.
struct Movable {
    numbers: Vec<u64>,
    bytes: u64,
}

fn movable(memory: &MovableMemory) -> Result<Movable, Failure> {
    let numbers: Vec<u64> = memory.physicals.keys().copied().filter(|&number| memory.is_movable(number)).collect();
    let pieces = numbers.iter().filter_map(|number| memory.physicals.get(number)).flat_map(|it| &it.pieces);
    let bytes = pieces.filter(|piece| matches!(piece.place, Place::Device(_))).map(|piece| piece.bytes).sum();
    if bytes == 0 {
        return Err(NOTHING_TO_MOVE.into());
    }
    Ok(Movable { numbers, bytes })
}

/// Whether there is something to offload, as far as can be seen without waiting.
pub fn could_offload() -> bool {
    pools::are_used() || MOVABLE_MEMORY.try_lock().is_none_or(|memory| movable(&memory).is_ok())
}
