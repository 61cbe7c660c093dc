//! Maps physical memory at the program's addresses and unmaps it.
//!
//! A failure leaves every byte where it was.

use super::progress::Failure;
use interpose_driver::calls::{self, Code};
use interpose_driver::vmm::movable_memory::{MappedAddress, MovableMemory};
use interpose_driver::vmm::physical::Piece;

pub(super) fn piece_of(memory: &MovableMemory, number: u64, index: usize) -> Option<&Piece> {
    memory.physicals.get(&number)?.pieces.get(index)
}

pub(super) fn piece_of_mut(memory: &mut MovableMemory, number: u64, index: usize) -> Option<&mut Piece> {
    memory.physicals.get_mut(&number)?.pieces.get_mut(index)
}

/// Error of unmapping a piece from its addresses, or of mapping another piece there.
pub(super) struct MappingError {
    pub code: Code,
    /// True if the previous mapping could not be restored either.
    pub lost_mapping: bool,
}

/// Maps memory at each of its addresses, or at none.
///
/// Unmaps memory that an earlier failure has left mapped at an address.
pub(super) fn map_at_all(addresses: &[MappedAddress], bytes: u64, handle: u64) -> Result<(), Code> {
    for (done, MappedAddress { address, access }) in addresses.iter().enumerate() {
        let mapped = calls::map(*address, bytes, handle).or_else(|code| {
            calls::unmap(*address, bytes).map_err(|_| code)?;
            calls::map(*address, bytes, handle)
        });
        let mapped = mapped.and_then(|()| {
            calls::set_access(*address, bytes, access).inspect_err(|_| {
                let _ = calls::unmap(*address, bytes);
            })
        });
        if let Err(code) = mapped {
            unmap_all(&addresses[..done], bytes);
            return Err(code);
        }
    }
    Ok(())
}

pub(super) fn unmap_all(addresses: &[MappedAddress], bytes: u64) {
    for mapped in addresses {
        let _ = calls::unmap(mapped.address, bytes);
    }
}

/// Unmaps memory from all of its addresses, or from none.
pub(super) fn unmap_from_all(addresses: &[MappedAddress], bytes: u64, handle: u64) -> Result<(), MappingError> {
    for (done, mapped) in addresses.iter().enumerate() {
        if let Err(code) = calls::unmap(mapped.address, bytes) {
            return Err(MappingError { code, lost_mapping: map_at_all(&addresses[..done], bytes, handle).is_err() });
        }
    }
    Ok(())
}

/// Maps the memory that an earlier operation failed to map again.
pub(super) fn remap_lost(memory: &mut MovableMemory) -> Result<(), Failure> {
    let numbers: Vec<u64> = memory.physicals.keys().copied().collect();
    for number in numbers {
        for index in 0..memory.physicals.get(&number).map_or(0, |physical| physical.pieces.len()) {
            let Some(piece) = piece_of(memory, number, index).filter(|piece| piece.lost_mapping) else { continue };
            let Some(handle) = piece.handle() else { continue };
            let addresses = memory.addresses(number, piece.offset);
            unmap_all(&addresses, piece.bytes);
            map_at_all(&addresses, piece.bytes, handle).map_err(|code| {
                Failure::retryable(format!(
                    "the driver did not map memory again ({code}): the program waits, try again"
                ))
            })?;
            if let Some(piece) = piece_of_mut(memory, number, index) {
                piece.lost_mapping = false;
            }
        }
    }
    Ok(())
}
