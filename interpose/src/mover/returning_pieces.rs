//! Brings bytes back: fills new physical memory, which replaces the old.

use super::copy::{self, Copy, Transfer};
use super::mappings::{MappingError, map_at_all, piece_of, piece_of_mut, unmap_all, unmap_from_all};
use super::progress::Progress;
use interpose_driver::calls::{self, Code};
use interpose_driver::types::Access;
use interpose_driver::vmm::arena::{ARENA, PendingRegions};
use interpose_driver::vmm::contexts;
use interpose_driver::vmm::movable_memory::{MappedAddress, MovableMemory};
use interpose_driver::vmm::physical::PhysicalPlace;
use memlab_protocol::status::OperationPhase;

/// Temporary mapping, to access memory that is not, or not usably, mapped at the program's addresses.
pub(super) struct Window {
    pub address: u64,
    bytes: u64,
    mapped: bool,
}

impl Window {
    pub fn open(handle: u64, bytes: u64, device: i32) -> Result<Self, Code> {
        let mut window = Self { address: calls::reserve(bytes, 0)?, bytes, mapped: false };
        calls::map(window.address, bytes, handle)?;
        window.mapped = true;
        calls::set_access(window.address, bytes, &[Access::full(device)])?;
        Ok(window)
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if self.mapped {
            let _ = calls::unmap(self.address, self.bytes);
        }
        calls::free_address(self.address, self.bytes);
    }
}

/// A piece that comes back.
pub(super) struct ReturningPiece {
    number: u64,
    index: usize,
    pub bytes: u64,
    /// The new physical memory.
    handle: u64,
    /// True if the new memory is on its device; otherwise it is in host memory.
    on_device: bool,
    /// The program's addresses, if they are unmapped.
    addresses: Vec<MappedAddress>,
    /// True if the piece is now mapped at these addresses.
    is_placed: bool,
    /// Temporary mappings for copies, if the program's addresses cannot be used.
    windows: Vec<Window>,
    /// Context in which the copies are made.
    context: u64,
    copies: Vec<Copy>,
}

impl ReturningPiece {
    pub fn new(number: u64, index: usize, bytes: u64, handle: u64, on_device: bool) -> Self {
        let (addresses, windows, copies) = (Vec::new(), Vec::new(), Vec::new());
        Self { number, index, bytes, handle, on_device, addresses, is_placed: false, windows, context: 0, copies }
    }

    fn open_window(&mut self, handle: u64, device: i32) -> Result<u64, Code> {
        let window = Window::open(handle, self.bytes, device)?;
        let address = window.address;
        self.windows.push(window);
        Ok(address)
    }

    pub fn undo(mut self) {
        self.windows.clear();
        if self.is_placed {
            unmap_all(&self.addresses, self.bytes);
        }
        calls::release(self.handle);
    }
}

impl Transfer for ReturningPiece {
    fn copies(&self) -> &[Copy] {
        &self.copies
    }

    fn prepare(&mut self) -> Result<(), Code> {
        map_at_all(&self.addresses, self.bytes, self.handle)?;
        self.is_placed = true;
        Ok(())
    }
}

/// Fills new memory and maps it at the program's addresses.
///
/// After an error, pieces that were not mapped yet stay where they were.
pub(super) fn return_all(
    memory: &mut MovableMemory,
    mut returns: Vec<ReturningPiece>,
    progress: &Progress,
) -> Result<(), Code> {
    let copied = returns.iter_mut().try_for_each(|it| prepare_copies(memory, it)).and_then(|()| {
        copy::run(returns.iter_mut().map(|it| (it.context, it)), &PendingRegions::EMPTY, &progress.done)
    });
    if let Err(code) = copied {
        returns.into_iter().for_each(ReturningPiece::undo);
        return Err(code);
    }
    progress.enter(OperationPhase::Releasing);
    let mut outcome = Ok(());
    for it in returns {
        match outcome {
            Ok(()) => outcome = settle(memory, it),
            Err(_) => it.undo(),
        }
    }
    outcome
}

/// Determines the copies to make, with their sources and destinations.
fn prepare_copies(memory: &MovableMemory, it: &mut ReturningPiece) -> Result<(), Code> {
    let Some(physical) = memory.physicals.get(&it.number) else { return Ok(()) };
    let (piece, device) = (&physical.pieces[it.index], physical.device);
    it.context = contexts::of_device(device);
    let reached = memory.reach(it.number).map(|at| at + piece.offset);
    match &piece.place {
        PhysicalPlace::Arena(spans) => {
            it.addresses = memory.addresses(it.number, piece.offset);
            // The program may have unmapped it in the meantime, or not given the device write access.
            let to = reached.map_or_else(|| it.open_window(it.handle, device), Ok)?;
            it.copies.extend(copy::of_spans(spans, to, |from, to| Copy::ToDevice { from, to }));
        }
        &PhysicalPlace::Host(old) => {
            let from = reached.map_or_else(|| it.open_window(old, device), Ok)?;
            let to = it.open_window(it.handle, device)?;
            it.copies.push(Copy::OnDevice { from, to, bytes: it.bytes });
        }
        PhysicalPlace::Device(_) => {}
    }
    Ok(())
}

/// Replaces the old memory by the new, which is now filled.
///
/// After an error everything is as before.
fn settle(memory: &mut MovableMemory, mut it: ReturningPiece) -> Result<(), Code> {
    it.windows.clear();
    let Some(piece) = piece_of(memory, it.number, it.index) else { return Ok(()) };
    if let Some(old) = piece.handle() {
        let addresses = memory.addresses(it.number, piece.offset);
        let replaced = unmap_from_all(&addresses, it.bytes, old).and_then(|()| {
            map_at_all(&addresses, it.bytes, it.handle)
                .map_err(|code| MappingError { code, lost_mapping: map_at_all(&addresses, it.bytes, old).is_err() })
        });
        if let Err(error) = replaced {
            if let Some(piece) = piece_of_mut(memory, it.number, it.index) {
                piece.lost_mapping = error.lost_mapping;
            }
            it.undo();
            return Err(error.code);
        }
    }
    let place = if it.on_device { PhysicalPlace::Device(it.handle) } else { PhysicalPlace::Host(it.handle) };
    let Some(piece) = piece_of_mut(memory, it.number, it.index) else { return Ok(()) };
    match std::mem::replace(&mut piece.place, place) {
        PhysicalPlace::Device(handle) | PhysicalPlace::Host(handle) => calls::release(handle),
        PhysicalPlace::Arena(spans) => ARENA.lock().give_back(&spans),
    }
    Ok(())
}
