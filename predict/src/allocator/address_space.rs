//! Model of the addresses that NVIDIA's driver assigns.
//!
//! Up to version 2.12, PyTorch's allocator takes free blocks of equal size in the order of their addresses, so
//! addresses are part of a card's model.

use std::collections::BTreeMap;

/// The driver takes address space from the system in multiples of this (observed on an H100, driver 580).
const CHUNK: u64 = 32 << 20;

/// Address space of a process, taken in chunks of 32 MiB or more, each in the highest gap, as Linux assigns it.
///
/// A piece of memory gets the lowest gap that is large enough in the chunks of its device. Without such a gap, it gets
/// a new chunk, and later pieces can use the rest of that chunk.
/// ```
/// use memlab_predict::allocator::AddressSpace;
///
/// let mut space = AddressSpace::new(0, 1 << 40);
/// let [first, large, small] = [20 << 20, 64 << 20, 12 << 20].map(|bytes| space.take(0, bytes).unwrap());
/// assert!(large < first, "the next chunk is below");
/// assert_eq!(small, first + (20 << 20), "what is left of the first chunk");
/// ```
#[derive(Debug)]
pub struct AddressSpace {
    begin: u64,
    end: u64,
    /// By first address.
    chunks: BTreeMap<u64, Chunk>,
}

#[derive(Debug)]
struct Chunk {
    bytes: u64,
    device: usize,
    /// Pieces in use: bytes by first address.
    taken: BTreeMap<u64, u64>,
    free_bytes: u64,
}

impl Chunk {
    /// Takes the lowest gap that is large enough.
    fn take(&mut self, begin: u64, bytes: u64) -> Option<u64> {
        let end = begin + self.bytes;
        let mut address = begin;
        for (&piece, &taken) in &self.taken {
            if piece - address >= bytes {
                break;
            }
            address = piece + taken;
        }
        (end - address >= bytes).then(|| {
            self.taken.insert(address, bytes);
            self.free_bytes -= bytes;
            address
        })
    }
}

impl AddressSpace {
    /// Returns the address space from `begin` to `end`.
    pub const fn new(begin: u64, end: u64) -> AddressSpace {
        AddressSpace { begin, end, chunks: BTreeMap::new() }
    }

    /// Returns the address of `bytes` for a device, or `None` if no gap is large enough.
    pub fn take(&mut self, device: usize, bytes: u64) -> Option<u64> {
        let of_device = self.chunks.iter_mut().filter(|(_, chunk)| chunk.device == device && chunk.free_bytes >= bytes);
        for (&begin, chunk) in of_device {
            if let Some(address) = chunk.take(begin, bytes) {
                return Some(address);
            }
        }
        let length = bytes.checked_next_multiple_of(CHUNK)?;
        let begin = self.highest_gap(length)?;
        let chunk =
            Chunk { bytes: length, device, taken: BTreeMap::from([(begin, bytes)]), free_bytes: length - bytes };
        self.chunks.insert(begin, chunk);
        Some(begin)
    }

    /// Returns the start of the highest `bytes` outside all chunks.
    fn highest_gap(&self, bytes: u64) -> Option<u64> {
        let mut end = self.end;
        for (&begin, chunk) in self.chunks.iter().rev() {
            if end - (begin + chunk.bytes) >= bytes {
                break;
            }
            end = begin;
        }
        end.checked_sub(bytes).filter(|&address| address >= self.begin)
    }

    /// Releases the piece at `address` and returns its bytes, or `None` if it is not in use.
    pub fn give_back(&mut self, address: u64) -> Option<u64> {
        let (&begin, chunk) = self.chunks.range_mut(..=address).next_back()?;
        let bytes = chunk.taken.remove(&address)?;
        chunk.free_bytes += bytes;
        if chunk.taken.is_empty() {
            self.chunks.remove(&begin);
        }
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn chunks_go_down_and_pieces_take_the_lowest_gap_in_them() {
        // GIVEN pieces of 20, 2 and 64 MiB
        let mut space = AddressSpace::new(0, 1 << 40);
        let [first, second, large] = [20, 2, 64].map(|size| space.take(0, size * MIB).unwrap());
        // THEN the second is in the chunk of the first, and the third in a new chunk below
        assert_eq!((second, large), (first + 20 * MIB, first - 64 * MIB));
        // WHEN the first is given back
        assert_eq!(space.give_back(first), Some(20 * MIB));
        assert_eq!(space.give_back(first), None);
        // THEN pieces that fit take its gap, from below
        assert_eq!(space.take(0, 24 * MIB), Some(large - 32 * MIB), "too large for the gap");
        assert_eq!([11, 9].map(|size| space.take(0, size * MIB)), [Some(first), Some(first + 11 * MIB)]);
        // AND an empty chunk is given back
        assert_eq!(space.give_back(large), Some(64 * MIB));
        assert_eq!(space.take(0, 40 * MIB), Some(large));
    }

    #[test]
    fn devices_share_no_chunk_and_the_space_has_an_end() {
        let mut space = AddressSpace::new(0, 96 * MIB);
        assert_eq!([0, 1, 0].map(|device| space.take(device, 10 * MIB)), [64, 32, 74].map(|at| Some(at * MIB)));
        assert_eq!(space.take(2, 33 * MIB), None);
        assert_eq!(space.take(2, u64::MAX), None);
        assert_eq!(space.take(2, 32 * MIB), Some(0));
    }
}
