//! Moves parts: ranges of pages go to host memory at the same addresses, and the program continues.

use std::time::{Duration, Instant};

use memlab_units::format::size;

use super::copy::{self, Copy};
use super::mappings::{MappingError, map_at_all, piece_of, piece_of_mut, unmap_all, unmap_from_all};
use super::progress::{Failure, Progress};
use super::quiesce::quiesce;
use super::returning_pieces::{ReturningPiece, Window, return_all};
use super::staging::{refuse_beside_storage, secure};
use crate::limit::admission;
use interpose_driver::calls::{self, Code};
use interpose_driver::types::Properties;
use interpose_driver::vmm::allocations::MIN_MOVABLE_BYTES;
use interpose_driver::vmm::arena::ARENA;
use interpose_driver::vmm::movable_memory::{MOVABLE_MEMORY, MovableMemory};
use interpose_driver::vmm::physical::{PhysicalPlace, Piece};
use interpose_driver::vmm::{contexts, host_memory};
use memlab_protocol::status::OperationPhase;

/// Moves ranges of pages to host memory that is mapped at the same addresses; the program continues.
pub fn move_ranges(progress: &Progress, timeout: Duration, ranges: &[(u64, u64)]) -> Result<Option<String>, Failure> {
    refuse_beside_storage()?;
    let contexts = contexts::all();
    progress.enter(OperationPhase::Preparing);
    let (splits, mapped) = {
        let memory = MOVABLE_MEMORY.lock();
        (splits_of(&memory, ranges), memory.mapped_host_bytes())
    };
    if splits.is_empty() {
        return Err("none of this memory can be moved: it is below 2 MiB, shared, or already in host memory".into());
    }
    check_host_memory(&splits, mapped)?;
    progress.enter(OperationPhase::Waiting);
    let deadline = Instant::now() + timeout;
    let closed = quiesce(&contexts, deadline, || progress.enter(OperationPhase::Synchronising))?;
    // Queried before the tables are locked: the limit reads them to determine the bytes in use.
    let room: Vec<u64> = (0..calls::device_count()).map(admission::room).collect();
    let mut memory = MOVABLE_MEMORY.lock();
    let splits = splits_of(&memory, ranges);
    check_host_memory(&splits, memory.mapped_host_bytes())?; // Other memory may be at these addresses by now.
    progress.begin_copying(splits.iter().map(|split| split.bytes).sum());
    let mut moved = 0;
    let mut outcome = Ok(());
    // From the last piece to the first, so that the indices of the remaining pieces stay valid.
    for split in splits.iter().rev() {
        progress.enter(OperationPhase::Copying);
        outcome = split_piece(&mut memory, split, &contexts, &room, progress);
        if outcome.is_err() {
            break;
        }
        moved += split.going();
    }
    if memory.is_waiting() {
        closed.stay_closed();
    }
    outcome.map_err(|code| {
        Failure::from(match moved {
            0 => format!("moving to host memory failed ({code}): nothing was moved"),
            moved => format!("moving to host memory failed ({code}) after {}, which stay in host memory", size(moved)),
        })
    })?;
    progress.settle_at(moved);
    let asked = ranges.iter().fold(0u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
    Ok((moved < asked).then(|| format!("{} of it cannot be moved or were already in host memory", size(asked - moved))))
}

/// Checks that host memory is available for the leaving pages.
///
/// `mapped` is the number of bytes in host memory outside the arena.
fn check_host_memory(splits: &[PieceSplit], mapped: u64) -> Result<(), Failure> {
    let going: u64 = splits.iter().map(PieceSplit::going).sum();
    let pinned = ARENA.lock().bytes();
    Ok(host_memory::check(going, pinned + mapped)?)
}

/// A piece on the device, and its leaving pages.
struct PieceSplit {
    number: u64,
    index: usize,
    bytes: u64,
    /// Runs in order, without gaps: (offset in the piece, bytes, true if it leaves).
    runs: Vec<(u64, u64, bool)>,
}

impl PieceSplit {
    fn going(&self) -> u64 {
        self.runs.iter().filter(|(_, _, goes)| *goes).map(|(_, bytes, _)| bytes).sum()
    }
}

/// Returns the pieces with pages in `ranges`, by number and index.
fn splits_of(memory: &MovableMemory, ranges: &[(u64, u64)]) -> Vec<PieceSplit> {
    let page = MIN_MOVABLE_BYTES;
    // Sorted and merged, so that looking up a page is fast: the program waits during the lookups.
    let mut sorted: Vec<(u64, u64)> =
        ranges.iter().map(|&(start, bytes)| (start, start.saturating_add(bytes))).collect();
    sorted.sort_unstable();
    sorted.dedup_by(|next, before| {
        let touches = next.0 <= before.1;
        if touches {
            before.1 = before.1.max(next.1);
        }
        touches
    });
    let is_asked = |address: u64| {
        let after = sorted.partition_point(|&(start, _)| start <= address);
        after > 0 && address + page <= sorted[after - 1].1
    };
    let mut splits = Vec::new();
    for (&number, physical) in &memory.physicals {
        if !memory.is_movable(number) {
            continue;
        }
        let Some(at) = memory.reach(number) else { continue };
        for (index, piece) in physical.pieces.iter().enumerate() {
            if !matches!(piece.place, PhysicalPlace::Device(_)) {
                continue;
            }
            let mut runs: Vec<(u64, u64, bool)> = Vec::new();
            for offset in (0..piece.bytes).step_by(page as usize) {
                let goes = is_asked(at + piece.offset + offset);
                match runs.last_mut() {
                    Some((_, bytes, same)) if *same == goes => *bytes += page,
                    _ => runs.push((offset, page, goes)),
                }
            }
            let split = PieceSplit { number, index, bytes: piece.bytes, runs };
            if split.going() > 0 {
                splits.push(split);
            }
        }
    }
    splits
}

/// Replaces one piece by several: those that go to host memory, and those that stay.
///
/// The bytes are complete at every moment: on the device until all copies are made and the leaving pages are mapped, and
/// then in the copies.
///
/// - `room`: bytes of each device that the limits leave.
fn split_piece(
    memory: &mut MovableMemory,
    split: &PieceSplit,
    contexts: &[u64],
    room: &[u64],
    progress: &Progress,
) -> Result<(), Code> {
    let at = memory.reach(split.number).ok_or(Code::INVALID_VALUE)?;
    let physical = memory.physicals.get(&split.number).ok_or(Code::INVALID_VALUE)?;
    let piece = &physical.pieces[split.index];
    let PhysicalPlace::Device(old) = piece.place else { return Err(Code::INVALID_VALUE) };
    let (start, device, properties) = (piece.offset, physical.device, physical.properties);
    let on_host = Properties::on_host(device).ok_or(Code::NOT_SUPPORTED)?;
    let staying = split.bytes - split.going();
    let fits_twice = room.get(device as usize).is_none_or(|&room| staying <= room);
    // 1. Copy all pages. Leaving pages go to the host. The others stay within the device if it and its limit have room for
    //    them twice; otherwise they go to the arena.
    let mut pieces: Vec<Piece> = Vec::new();
    let copied = (|| {
        for &(offset, bytes, goes) in &split.runs {
            let place = if goes {
                PhysicalPlace::Host(calls::create(bytes, &on_host)?)
            } else if fits_twice && let Ok(handle) = calls::create(bytes, &properties) {
                PhysicalPlace::Device(handle)
            } else {
                secure(bytes, memory.mapped_host_bytes(), contexts).map_err(|_| Code::OUT_OF_MEMORY)?;
                progress.expect(bytes); // The pages in the arena are copied back, too.
                PhysicalPlace::Arena(ARENA.lock().take(bytes).ok_or(Code::OUT_OF_MEMORY)?)
            };
            pieces.push(Piece::new(start + offset, bytes, place));
        }
        let mut windows = Vec::new();
        let mut copies: Vec<Copy> = Vec::new();
        for &Piece { offset, bytes, ref place, .. } in &pieces {
            let from = at + offset;
            match place {
                PhysicalPlace::Arena(spans) => {
                    copies.extend(copy::of_spans(spans, from, |to, from| Copy::ToHost { from, to }));
                }
                &PhysicalPlace::Host(handle) | &PhysicalPlace::Device(handle) => {
                    let window = Window::open(handle, bytes, device)?;
                    copies.push(Copy::OnDevice { from, to: window.address, bytes });
                    windows.push(window);
                }
            }
        }
        let pending = ARENA.lock().pending();
        copy::run([(contexts::of_device(device), &mut copies)], &pending, &progress.done)
    })();
    // 2. Map the pieces that have physical memory.
    let addresses = memory.addresses(split.number, start);
    let placed = copied.map_err(|code| MappingError { code, lost_mapping: false }).and_then(|()| {
        unmap_from_all(&addresses, split.bytes, old)?;
        let gone = || pieces.iter().filter_map(|piece| Some((piece, piece.handle()?)));
        for (done, (piece, handle)) in gone().enumerate() {
            if let Err(code) = map_at_all(&memory.addresses(split.number, piece.offset), piece.bytes, handle) {
                for (piece, _) in gone().take(done) {
                    unmap_all(&memory.addresses(split.number, piece.offset), piece.bytes);
                }
                return Err(MappingError { code, lost_mapping: map_at_all(&addresses, split.bytes, old).is_err() });
            }
        }
        Ok(())
    });
    if let Err(error) = placed {
        pieces.into_iter().for_each(Piece::release);
        if let Some(piece) = piece_of_mut(memory, split.number, split.index) {
            piece.lost_mapping = error.lost_mapping;
        }
        return Err(error.code);
    }
    calls::release(old);
    let count = pieces.len();
    if let Some(physical) = memory.physicals.get_mut(&split.number) {
        physical.pieces.splice(split.index..=split.index, pieces);
    }
    // 3. Bring the pieces in the arena back: to the device, or to host memory if another process has taken the room. If
    //    neither has room, the piece stays in the arena, and the program waits for `restore`.
    let mut returns = Vec::new();
    for index in split.index..split.index + count {
        let Some(Piece { bytes, place: PhysicalPlace::Arena(_), .. }) = piece_of(memory, split.number, index) else {
            continue;
        };
        let made = calls::create(*bytes, &properties).map(|handle| (handle, true));
        match made.or_else(|_| calls::create(*bytes, &on_host).map(|handle| (handle, false))) {
            Ok((handle, on_device)) => {
                returns.push(ReturningPiece::new(split.number, index, *bytes, handle, on_device))
            }
            Err(code) => {
                returns.into_iter().for_each(ReturningPiece::undo);
                return Err(code);
            }
        }
    }
    return_all(memory, returns, progress)
}
