//! Pieces that go to the arena.
//!
//! They are copied, and then unmapped and released.

use super::copy::{self, Copy, Transfer};
use super::mappings::{MappingError, map_at_all, piece_of_mut, unmap_from_all};
use interpose_driver::calls;
use interpose_driver::vmm::arena::{Arena, Span};
use interpose_driver::vmm::contexts;
use interpose_driver::vmm::movable_memory::{MappedAddress, MovableMemory};
use interpose_driver::vmm::physical::PhysicalPlace;

/// A piece on its way to the arena.
pub(super) struct LeavingPiece {
    number: u64,
    index: usize,
    pub bytes: u64,
    /// The piece's physical memory on the device.
    handle: u64,
    /// Context in which the copies are made.
    pub context: u64,
    spans: Vec<Span>,
    copies: Vec<Copy>,
    /// The program's addresses of the piece.
    addresses: Vec<MappedAddress>,
    /// True if the device's memory is kept until all pieces are copied.
    keeps: bool,
    state: PieceState,
}

/// Progress of a piece that leaves the device.
enum PieceState {
    Mapped,
    /// Unmapped, but not released.
    Unmapped,
    Released,
    Failed(MappingError),
}

impl Transfer for LeavingPiece {
    fn copies(&self) -> &[Copy] {
        &self.copies
    }

    fn finish(&mut self) {
        self.state = match unmap_from_all(&self.addresses, self.bytes, self.handle) {
            Err(error) => PieceState::Failed(error),
            Ok(()) if self.keeps => PieceState::Unmapped,
            Ok(()) => {
                calls::release(self.handle);
                PieceState::Released
            }
        };
    }
}

impl LeavingPiece {
    /// Records the piece's location in the tables.
    ///
    /// If it stays on the device, returns its host memory.
    pub fn settle(self, memory: &mut MovableMemory, all_are_copied: bool) -> Option<Vec<Span>> {
        let piece = piece_of_mut(memory, self.number, self.index)?;
        let has_left = match self.state {
            PieceState::Released => true,
            PieceState::Unmapped if all_are_copied => {
                calls::release(self.handle);
                true
            }
            PieceState::Unmapped => {
                piece.lost_mapping = map_at_all(&self.addresses, self.bytes, self.handle).is_err();
                false
            }
            PieceState::Failed(error) => {
                piece.lost_mapping = error.lost_mapping;
                false
            }
            PieceState::Mapped => false,
        };
        if has_left {
            piece.place = PhysicalPlace::Arena(self.spans);
            return None;
        }
        Some(self.spans)
    }
}

/// Plans the copies of all given pieces that are on a device.
///
/// With `keeps`, the devices keep their memory until everything is copied.
pub(super) fn plan(memory: &MovableMemory, arena: &mut Arena, numbers: &[u64], keeps: bool) -> Vec<LeavingPiece> {
    let mut leaving: Vec<LeavingPiece> = Vec::new();
    for &number in numbers {
        let Some(from) = memory.reach(number) else { continue };
        let Some(physical) = memory.physicals.get(&number) else { continue };
        let context = contexts::of_device(physical.device);
        for (index, piece) in physical.pieces.iter().enumerate() {
            let PhysicalPlace::Device(handle) = piece.place else { continue };
            let Some(spans) = arena.take(piece.bytes) else { continue };
            let to_host = copy::of_spans(&spans, from + piece.offset, |to, from| Copy::ToHost { from, to });
            let (bytes, copies, addresses) = (piece.bytes, to_host.collect(), memory.addresses(number, piece.offset));
            let state = PieceState::Mapped;
            leaving.push(LeavingPiece {
                number,
                index,
                bytes,
                handle,
                context,
                spans,
                copies,
                addresses,
                keeps,
                state,
            });
        }
    }
    leaving
}
