//! Pieces that go to the arena: they are copied, and then unmapped and released.

use super::copy::{self, Copy, Transfer};
use super::mappings::{MappingError, map_at_all, piece_of_mut, unmap_from_all};
use interpose_driver::calls;
use interpose_driver::vmm::arena::{Arena, Span};
use interpose_driver::vmm::contexts;
use interpose_driver::vmm::movable_memory::{MappedAddress, MovableMemory};
use interpose_driver::vmm::physical::PhysicalPlace;

pub(super) struct Leaving {
    number: u64,
    index: usize,
    pub bytes: u64,
    /// Its physical memory on the device.
    handle: u64,
    /// The context that the copies are made in.
    pub context: u64,
    spans: Vec<Span>,
    copies: Vec<Copy>,
    /// The program's addresses.
    addresses: Vec<MappedAddress>,
    /// Whether the device's memory is kept until all pieces are copied.
    keeps: bool,
    state: Departure,
}

enum Departure {
    Mapped,
    /// But not released.
    Unmapped,
    Released,
    Failed(MappingError),
}

impl Transfer for Leaving {
    fn copies(&self) -> &[Copy] {
        &self.copies
    }

    fn finish(&mut self) {
        self.state = match unmap_from_all(&self.addresses, self.bytes, self.handle) {
            Err(error) => Departure::Failed(error),
            Ok(()) if self.keeps => Departure::Unmapped,
            Ok(()) => {
                calls::release(self.handle);
                Departure::Released
            }
        };
    }
}

impl Leaving {
    /// Enters into the tables where the piece is. If it stays on the device, returns the host memory that it had.
    pub fn settle(self, memory: &mut MovableMemory, all_are_copied: bool) -> Option<Vec<Span>> {
        let piece = piece_of_mut(memory, self.number, self.index)?;
        let has_left = match self.state {
            Departure::Released => true,
            Departure::Unmapped if all_are_copied => {
                calls::release(self.handle);
                true
            }
            Departure::Unmapped => {
                piece.lost_mapping = map_at_all(&self.addresses, self.bytes, self.handle).is_err();
                false
            }
            Departure::Failed(error) => {
                piece.lost_mapping = error.lost_mapping;
                false
            }
            Departure::Mapped => false,
        };
        if has_left {
            piece.place = PhysicalPlace::Arena(self.spans);
            return None;
        }
        Some(self.spans)
    }
}

/// What there is to copy: all of these that are on a device. `keeps`: the devices' memory stays theirs until all is copied.
pub(super) fn plan(memory: &MovableMemory, arena: &mut Arena, numbers: &[u64], keeps: bool) -> Vec<Leaving> {
    let mut leaving: Vec<Leaving> = Vec::new();
    for &number in numbers {
        let Some(from) = memory.reach(number) else { continue };
        let Some(physical) = memory.physicals.get(&number) else { continue };
        let context = contexts::of_device(physical.device);
        for (index, piece) in physical.pieces.iter().enumerate() {
            let PhysicalPlace::Device(handle) = piece.place else { continue };
            let Some(spans) = arena.take(piece.bytes) else { continue };
            let to_host = copy::of_spans(&spans, from + piece.offset, |to, from| Copy::ToHost { from, to });
            let (bytes, copies, addresses) = (piece.bytes, to_host.collect(), memory.addresses(number, piece.offset));
            let state = Departure::Mapped;
            leaving.push(Leaving { number, index, bytes, handle, context, spans, copies, addresses, keeps, state });
        }
    }
    leaving
}
