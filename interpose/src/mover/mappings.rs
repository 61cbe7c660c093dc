//! Mapping physical memory at the program's addresses and taking it away, so that whatever fails leaves every byte where it
//! was.

use super::progress::Failure;
use crate::cuda::calls::{self, Code};
use crate::vmm::holdings::{Holdings, Spot};
use crate::vmm::physical::Piece;

pub(super) fn piece_of(holdings: &Holdings, number: u64, index: usize) -> Option<&Piece> {
    holdings.physicals.get(&number)?.pieces.get(index)
}

pub(super) fn piece_of_mut(holdings: &mut Holdings, number: u64, index: usize) -> Option<&mut Piece> {
    holdings.physicals.get_mut(&number)?.pieces.get_mut(index)
}

/// A piece could not be taken from its addresses, or another not be put there.
pub(super) struct Stuck {
    pub code: Code,
    /// Nor was what had been there put back.
    pub adrift: bool,
}

impl Stuck {
    pub const WHERE_IT_WAS: Self = Self { code: Code::INVALID_VALUE, adrift: false };
}

/// Maps memory at each of its addresses, or at none. What an earlier failure has left at an address goes.
pub(super) fn put(spots: &[Spot], bytes: u64, handle: u64) -> Result<(), Code> {
    for (done, Spot { address, access }) in spots.iter().enumerate() {
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
            unmap_all(&spots[..done], bytes);
            return Err(code);
        }
    }
    Ok(())
}

pub(super) fn unmap_all(spots: &[Spot], bytes: u64) {
    for spot in spots {
        let _ = calls::unmap(spot.address, bytes);
    }
}

/// Takes memory from all of its addresses, or from none.
pub(super) fn take_away(spots: &[Spot], bytes: u64, handle: u64) -> Result<(), Stuck> {
    for (done, spot) in spots.iter().enumerate() {
        if let Err(code) = calls::unmap(spot.address, bytes) {
            return Err(Stuck { code, adrift: put(&spots[..done], bytes, handle).is_err() });
        }
    }
    Ok(())
}

/// Puts back what an earlier operation could not.
pub(super) fn mend(holdings: &mut Holdings) -> Result<(), Failure> {
    let numbers: Vec<u64> = holdings.physicals.keys().copied().collect();
    for number in numbers {
        for index in 0..holdings.physicals.get(&number).map_or(0, |physical| physical.pieces.len()) {
            let Some(piece) = piece_of(holdings, number, index).filter(|piece| piece.adrift) else { continue };
            let Some(handle) = piece.handle() else { continue };
            let spots = holdings.spots(number, piece.offset);
            unmap_all(&spots, piece.bytes);
            put(&spots, piece.bytes, handle).map_err(|code| {
                Failure::retryable(format!(
                    "the driver did not map memory again ({code}): the program waits, try again"
                ))
            })?;
            if let Some(piece) = piece_of_mut(holdings, number, index) {
                piece.adrift = false;
            }
        }
    }
    Ok(())
}
