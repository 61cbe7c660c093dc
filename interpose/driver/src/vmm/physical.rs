//! Physical memory behind the program's addresses.
//!
//! From the program's view, a [`Physical`] is one piece of device memory from `cuMemAlloc` or `cuMemCreate`. Its bytes are
//! in [`Piece`]s: one, on the device, until part of it is moved. The program never sees the driver's handles of pieces,
//! because they change.

use super::arena::{ARENA, Span};
use crate::calls::{self, Code};
use crate::types::Properties;

/// Location of the bytes of a piece.
pub enum PhysicalPlace {
    /// In physical memory of the device, by the driver's handle.
    Device(u64),
    /// In physical memory of the host, mapped at the same address, by the driver's handle.
    Host(u64),
    /// In the arena, and not mapped: the program must wait.
    Arena(Vec<Span>),
}

pub struct Piece {
    /// Offset within its [`Physical`].
    pub offset: u64,
    pub bytes: u64,
    pub place: PhysicalPlace,
    /// True if the driver unmapped it and failed to map it again: the program cannot run until it is mapped.
    pub lost_mapping: bool,
}

impl Piece {
    pub fn new(offset: u64, bytes: u64, place: PhysicalPlace) -> Self {
        Self { offset, bytes, place, lost_mapping: false }
    }

    /// The driver's handle of the physical memory; `None` in the arena.
    pub fn handle(&self) -> Option<u64> {
        match self.place {
            PhysicalPlace::Device(handle) | PhysicalPlace::Host(handle) => Some(handle),
            PhysicalPlace::Arena(_) => None,
        }
    }

    /// Releases the piece's memory.
    pub fn release(self) {
        match self.place {
            PhysicalPlace::Device(handle) | PhysicalPlace::Host(handle) => calls::release(handle),
            PhysicalPlace::Arena(spans) => ARENA.lock().give_back(&spans),
        }
    }

    /// Bytes of the piece inside a mapping of this size: the program may map only the beginning.
    fn bytes_within(&self, mapped: u64) -> u64 {
        self.bytes.min(mapped.saturating_sub(self.offset))
    }
}

pub struct Physical {
    pub device: i32,
    pub bytes: u64,
    pub properties: Properties,
    /// Number of handles that the program holds; 0 for memory from `cuMemAlloc`.
    pub references: u32,
    /// Pieces in order, without gaps.
    pub pieces: Vec<Piece>,
    /// Addresses in [`super::movable_memory::MovableMemory::mappings`].
    pub mapped_at: Vec<u64>,
    /// Reason for which it cannot be moved.
    pub fixed: Option<&'static str>,
}

impl Physical {
    /// Maps all pieces that have physical memory at `address`, or none.
    pub fn map_at(&self, address: u64, bytes: u64) -> Result<(), Code> {
        for (done, piece) in self.pieces.iter().enumerate() {
            let Some(handle) = piece.handle() else { continue };
            let length = piece.bytes_within(bytes);
            if length > 0
                && let Err(code) = calls::map(address + piece.offset, length, handle)
            {
                for piece in self.pieces[..done].iter().filter(|piece| piece.handle().is_some()) {
                    let _ = calls::unmap(address + piece.offset, piece.bytes_within(bytes));
                }
                return Err(code);
            }
        }
        Ok(())
    }

    /// Unmaps all pieces at `address` that are mapped.
    pub fn unmap_at(&self, address: u64, bytes: u64) -> Result<(), Code> {
        for piece in self.pieces.iter().filter(|piece| piece.handle().is_some() && piece.bytes_within(bytes) > 0) {
            calls::unmap(address + piece.offset, piece.bytes_within(bytes))?;
        }
        Ok(())
    }

    /// Releases all of its memory.
    pub fn release(self) {
        self.pieces.into_iter().for_each(Piece::release);
    }

    pub fn bytes_where(&self, wanted: impl Fn(&PhysicalPlace) -> bool) -> u64 {
        self.pieces.iter().filter(|piece| wanted(&piece.place)).map(|piece| piece.bytes).sum()
    }
}
