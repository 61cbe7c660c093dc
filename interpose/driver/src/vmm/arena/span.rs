//! Spans of the arena.

use std::ptr;

/// Piece of the arena.
///
/// It lies within one region, so that one copy can cover it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    pub address: usize,
    pub bytes: u64,
}

impl Span {
    pub fn pointer(self) -> *mut u8 {
        ptr::with_exposed_provenance_mut(self.address)
    }
}
