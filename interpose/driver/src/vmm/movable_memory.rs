//! Tables of the movable memory: its mappings, and the current location of its bytes.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::physical::{Physical, PhysicalPlace};
use crate::calls::{self, Code, Current};
use crate::types::Access;
use interpose_base::locks;

/// The request of a `cuMemAlloc` that memlab answered.
#[derive(Clone, Copy)]
pub struct Allocation {
    pub requested: u64,
    pub context: u64,
}

pub struct Mapping {
    pub bytes: u64,
    pub physical: u64,
    /// Access set by the program, by location.
    pub access: Vec<Access>,
    pub allocation: Option<Allocation>,
}

impl Mapping {
    /// Size requested by the program.
    pub fn bytes_asked_for(&self) -> u64 {
        self.allocation.map_or(self.bytes, |allocation| allocation.requested)
    }

    pub fn allow(&mut self, access: &[Access]) {
        for new in access {
            match self.access.iter_mut().find(|known| known.location == new.location) {
                Some(known) => known.flags = new.flags,
                None => self.access.push(*new),
            }
        }
    }
}

/// An address, and the devices that may access the memory mapped there.
pub struct MappedAddress {
    pub address: u64,
    pub access: Vec<Access>,
}

#[derive(Clone, Copy, Default)]
pub struct Totals {
    pub device_bytes: u64,
    pub host_bytes: u64,
    /// Bytes backed by memlab that cannot be moved.
    pub fixed_bytes: u64,
    /// Bytes requested by `cuMemAlloc` calls that memlab answered.
    pub backed_bytes: u64,
}

/// Memory that the program has freed.
pub struct Freed {
    pub address: u64,
    pub context: u64,
    pub mapping: Mapping,
    pub physical: Physical,
}

impl Freed {
    /// Waits for work that uses the memory, as `cuMemFree` does, and unmaps it.
    pub fn detach(&self) -> Result<(), Code> {
        let finished = Current::switch(self.context).and_then(|_current| calls::synchronize());
        finished.and_then(|()| self.physical.unmap_at(self.address, self.mapping.bytes))
    }

    pub fn give_back(self) {
        self.physical.release();
        calls::free_address(self.address, self.mapping.bytes);
    }
}

pub struct MovableMemory {
    /// Physical memory, keyed by memlab's number for it.
    pub physicals: BTreeMap<u64, Physical>,
    pub mappings: BTreeMap<u64, Mapping>,
    last: u64,
    /// (owner of the memory, device that may access it), as set by `cuCtxEnablePeerAccess`.
    pub peers: Vec<(i32, i32)>,
    /// Memory freed during a capture and not released yet.
    pub deferred: Vec<Freed>,
}

/// Tables of the movable memory.
///
/// The lock is held while tables change and while bytes are moved. A thread of the program may wait for it in a call that
/// frees. The thread that moves bytes needs no lock that such a thread can hold.
pub static MOVABLE_MEMORY: Mutex<MovableMemory> = Mutex::new(MovableMemory::new());

impl Default for MovableMemory {
    fn default() -> Self {
        Self::new()
    }
}

impl MovableMemory {
    pub const fn new() -> Self {
        Self { physicals: BTreeMap::new(), mappings: BTreeMap::new(), last: 0, peers: Vec::new(), deferred: Vec::new() }
    }

    pub fn add(&mut self, physical: Physical) -> u64 {
        self.last += 1;
        self.physicals.insert(self.last, physical);
        self.last
    }

    /// The mapping that contains `address`.
    pub fn mapping_at(&self, address: u64) -> Option<(u64, &Mapping)> {
        let (&start, mapping) = self.mappings.range(..=address).next_back()?;
        (address - start < mapping.bytes).then_some((start, mapping))
    }

    /// Removes a mapping from the tables, and its physical memory if nothing else refers to it.
    pub fn forget(&mut self, address: u64) -> Option<(Mapping, Option<Physical>)> {
        let mapping = self.mappings.remove(&address)?;
        if let Some(physical) = self.physicals.get_mut(&mapping.physical) {
            physical.mapped_at.retain(|&at| at != address);
        }
        let unused = self.take_if_unused(mapping.physical);
        Some((mapping, unused))
    }

    pub fn take_if_unused(&mut self, number: u64) -> Option<Physical> {
        let physical = self.physicals.get(&number)?;
        if physical.references == 0 && physical.mapped_at.is_empty() { self.physicals.remove(&number) } else { None }
    }

    /// Returns an address at which the device can read and write `number`.
    ///
    /// Without one, the memory cannot be moved.
    pub fn reach(&self, number: u64) -> Option<u64> {
        let physical = self.physicals.get(&number)?;
        let own = Access::full(physical.device);
        physical
            .mapped_at
            .iter()
            .copied()
            .find(|at| self.mappings.get(at).is_some_and(|it| it.bytes == physical.bytes && it.access.contains(&own)))
    }

    /// Returns true if its bytes can be moved.
    ///
    /// Memory that is only partly mapped at some address could not be mapped there in pieces.
    pub fn is_movable(&self, number: u64) -> bool {
        self.physicals.get(&number).is_some_and(|physical| {
            let whole = |at| self.mappings.get(at).is_some_and(|mapping| mapping.bytes == physical.bytes);
            physical.fixed.is_none() && physical.mapped_at.iter().all(whole)
        }) && self.reach(number).is_some()
    }

    /// Returns true if the program cannot run because some of its memory is not mapped.
    pub fn is_waiting(&self) -> bool {
        let mut pieces = self.physicals.values().flat_map(|physical| &physical.pieces);
        pieces.any(|piece| piece.lost_mapping || matches!(piece.place, PhysicalPlace::Arena(_)))
    }

    /// Addresses of a piece, and the devices that may access it there.
    pub fn addresses(&self, number: u64, offset: u64) -> Vec<MappedAddress> {
        let mapped_at = self.physicals.get(&number).map_or(&[][..], |physical| &physical.mapped_at);
        let mapped = |&at: &u64| {
            let access = self.mappings.get(&at)?.access.clone();
            Some(MappedAddress { address: at + offset, access })
        };
        mapped_at.iter().filter_map(mapped).collect()
    }

    /// Bytes of host memory mapped at the program's addresses.
    pub fn mapped_host_bytes(&self) -> u64 {
        self.physicals
            .values()
            .map(|physical| physical.bytes_where(|place| matches!(place, PhysicalPlace::Host(_))))
            .sum()
    }

    /// Bytes in host memory, for every device with any memory in the tables.
    pub fn host_bytes_by_device(&self) -> BTreeMap<i32, u64> {
        let mut by_device = BTreeMap::<i32, u64>::new();
        for physical in self.physicals.values() {
            *by_device.entry(physical.device).or_default() +=
                physical.bytes_where(|place| !matches!(place, PhysicalPlace::Device(_)));
        }
        by_device
    }

    pub fn totals(&self) -> Totals {
        let backed = self.mappings.values().filter_map(|mapping| mapping.allocation);
        let backed_bytes = backed.map(|allocation| allocation.requested).sum();
        let mut totals = Totals { backed_bytes, ..Totals::default() };
        for (&number, physical) in &self.physicals {
            let on_device = physical.bytes_where(|place| matches!(place, PhysicalPlace::Device(_)));
            totals.host_bytes += physical.bytes - on_device;
            if on_device < physical.bytes || self.is_movable(number) {
                totals.device_bytes += on_device;
            } else {
                totals.fixed_bytes += on_device;
            }
        }
        totals
    }
}

/// Called in a forked child: the device memory is the parent's, and the tables may have been in the middle of a change.
pub fn reset_in_child() {
    locks::reset_in_child(&MOVABLE_MEMORY, MovableMemory::new());
}
