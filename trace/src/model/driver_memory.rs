//! Driver memory of one device (device -1: of the host), and the use that the driver reports.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::HashMap;
use serde::{Deserialize, Serialize};

use super::anomalies::Anomalies;
use super::private_pools::PrivatePools;
use super::views::DriverView;
use memlab_format::record::{self, DriverKind, Flags};

/// One allocation of driver memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HeldMemory {
    pub(crate) kind: DriverKind,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    /// True for a segment of PyTorch's caching allocator.
    pub(crate) segment: bool,
    /// True for a block that the allocator took directly from the driver.
    #[serde(default)]
    pub(crate) block: bool,
    /// The caller: index into `sources`.
    pub(crate) source: u32,
    /// Capture of the CUDA graph whose private pool received the memory; 0: none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) graph: u64,
    /// Ledger cell that counts the memory, if it holds other arrays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cell: Option<u32>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl HeldMemory {
    /// Returns true for a block of PyTorch's allocator outside its segments.
    pub(crate) fn is_block(&self) -> bool {
        // Keyframes of older versions lack `block`.
        self.block || (self.segment && self.kind == DriverKind::Async)
    }
}

/// Physical memory mapped at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mapping {
    pub(crate) bytes: u64,
    pub(crate) handle: u64,
}

/// Name prefixes of libraries that allocate their own workspaces: of CUDA, of PyTorch, and of the simulated GPU.
///
/// [`is_nccl`] recognizes NCCL.
const LIBRARIES_WITH_WORKSPACES: [&str; 6] = ["libcu", "libnv", "libnpp", "libtorch", "libc10", "libsimgpu_"];

/// A caller of the driver: kind of memory, function and library.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct DriverCaller {
    pub(crate) kind: DriverKind,
    pub(crate) call: Arc<str>,
    pub(crate) library: Arc<str>,
}

impl DriverCaller {
    fn of(event: &record::DriverAlloc<'_>) -> Self {
        Self { kind: event.kind, call: event.call.as_ref().into(), library: event.library.as_ref().into() }
    }

    fn is_nccl(&self) -> bool {
        is_nccl(&self.library)
    }
}

/// Returns true for NCCL: `libnccl.so.2`.
fn is_nccl(library: &str) -> bool {
    library.contains("nccl")
}

/// Returns true for driver memory of arrays: not PyTorch's, not another process's, and not a library's workspace.
pub(crate) fn holds_arrays(event: &record::DriverAlloc<'_>) -> bool {
    let takes_workspaces =
        is_nccl(&event.library) || LIBRARIES_WITH_WORKSPACES.iter().any(|prefix| event.library.starts_with(prefix));
    event.kind.on_device() && !event.flags.has(Flags::SEGMENT) && !takes_workspaces
}

/// Address range of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SegmentRange {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    /// True if mapped piece by piece.
    pub(crate) is_expandable: bool,
    /// First capture of the private pool that the segment belongs to; 0: none.
    pub(crate) pool: u64,
}

/// Totals of driver memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DriverTotals {
    /// Bytes in segments of PyTorch's caching allocator.
    pub(crate) reserved: u64,
    pub(crate) peak_reserved: u64,
    pub(crate) segments: u64,
    /// Part of `reserved` in private pools of CUDA graphs.
    #[serde(default)]
    pub(crate) private_reserved: u64,
    /// Bytes of this process's driver memory outside PyTorch's allocator.
    pub(crate) libraries: u64,
    /// Part of `libraries` that NCCL holds.
    #[serde(default)]
    pub(crate) nccl: u64,
    /// Part of `libraries` in other arrays.
    #[serde(default)]
    pub(crate) arrays: u64,
    pub(crate) context: u64,
    pub(crate) other_processes: u64,
    /// Bytes of this process's device memory that are in host memory.
    #[serde(default)]
    pub(crate) moved: u64,
    /// The peak of `moved`.
    #[serde(default)]
    pub(crate) peak_moved: u64,
    pub(crate) sampled: bool,
    pub(crate) process_known: bool,
    /// Size of the device's memory, as sampled; 0: not known.
    pub(crate) total: u64,
}

/// Bytes of one caller outside segments.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HeldBySource {
    pub(crate) bytes: u64,
    pub(crate) peak: u64,
}

/// A device's driver memory.
#[derive(Clone, Default)]
pub(crate) struct DriverMemory {
    pub(crate) totals: DriverTotals,
    pub(crate) held: HashMap<(DriverKind, u64), HeldMemory>,
    pub(crate) sources: Vec<DriverCaller>,
    /// Current and peak bytes of each source.
    pub(crate) held_by_source: Vec<HeldBySource>,
    source_ids: HashMap<DriverCaller, u32>,
    pub(crate) mappings: BTreeMap<u64, Mapping>,
    pub(crate) private: PrivatePools,
}

impl DriverMemory {
    /// Counts memory as held. Returns an unfreed allocation recorded at the same address.
    pub(crate) fn allocate(
        &mut self,
        event: &record::DriverAlloc<'_>,
        cell: Option<u32>,
        anomalies: &mut Anomalies,
    ) -> Option<HeldMemory> {
        let source = self.source(DriverCaller::of(event));
        let held = HeldMemory {
            kind: event.kind,
            address: event.address,
            bytes: event.bytes,
            segment: event.flags.has(Flags::SEGMENT) && event.kind.on_device(),
            block: false,
            source,
            graph: event.graph,
            cell,
        };
        let lost = self.hold(held);
        if let Some(lost) = lost {
            anomalies.lost_driver_frees += 1;
            self.discount(lost);
        }
        lost
    }

    /// Records driver memory that is counted as a block.
    pub(crate) fn hold_block(&mut self, event: &record::DriverAlloc<'_>) -> Option<HeldMemory> {
        let source = self.source(DriverCaller::of(event));
        let record::DriverAlloc { kind, address, bytes, .. } = *event;
        let held = HeldMemory { kind, address, bytes, segment: true, block: true, source, graph: 0, cell: None };
        self.hold(held)
    }

    /// Counts memory as held. Returns the allocation recorded at the same address.
    fn hold(&mut self, held: HeldMemory) -> Option<HeldMemory> {
        if held.segment {
            self.totals.reserved = self.totals.reserved.saturating_add(held.bytes);
            self.totals.segments += 1;
            if held.graph != 0 {
                self.totals.private_reserved = self.totals.private_reserved.saturating_add(held.bytes);
                self.hold_private(held);
            }
        } else if held.kind.on_device() {
            self.hold_for_source(held);
            self.totals.libraries = self.totals.libraries.saturating_add(held.bytes);
            if self.sources[held.source as usize].is_nccl() {
                self.totals.nccl = self.totals.nccl.saturating_add(held.bytes);
            } else if held.cell.is_some() {
                self.totals.arrays = self.totals.arrays.saturating_add(held.bytes);
            }
        }
        let lost = self.held.insert((held.kind, held.address), held);
        let lost_bytes = lost.filter(|lost| lost.segment).map_or(0, |lost| lost.bytes);
        let reserved = self.totals.reserved.saturating_sub(lost_bytes);
        self.totals.peak_reserved = self.totals.peak_reserved.max(reserved);
        lost
    }

    fn hold_for_source(&mut self, held: HeldMemory) {
        let of_source = &mut self.held_by_source[held.source as usize];
        of_source.bytes = of_source.bytes.saturating_add(held.bytes);
        of_source.peak = of_source.peak.max(of_source.bytes);
    }

    fn hold_private(&mut self, held: HeldMemory) {
        if held.kind != DriverKind::Physical {
            self.private.hold(held.address, held.bytes, held.graph);
        }
    }

    fn forget_private(&mut self, held: HeldMemory) {
        // Its replacement at the same address may belong to a private pool, too.
        if self.held.get(&(held.kind, held.address)).is_none_or(|now| now.graph == 0) {
            self.private.free(held.address);
        }
    }

    /// Returns true if the address is in a segment of a private pool.
    #[inline]
    pub(crate) fn is_private(&self, address: u64) -> bool {
        self.totals.private_reserved > 0 && self.capture_at(address) != 0
    }

    /// Returns the capture whose private pool contains the segment with this address; 0: none.
    pub(crate) fn capture_at(&self, address: u64) -> u64 {
        self.private.capture_at(address).unwrap_or_else(|| {
            let mapping = self.mappings.range(..=address).next_back();
            let mapping = mapping.filter(|(start, mapping)| address - **start < mapping.bytes);
            mapping.map_or(0, |(_, mapping)| self.capture_of(mapping))
        })
    }

    fn capture_of(&self, mapping: &Mapping) -> u64 {
        self.held.get(&(DriverKind::Physical, mapping.handle)).map_or(0, |held| held.graph)
    }

    /// Returns the first capture in the pool of `graph`; 0 for 0.
    fn pool_of(&self, graph: u64) -> u64 {
        if graph == 0 { 0 } else { self.private.first_of_pool(graph) }
    }

    /// Counts memory as freed. Returns the freed allocation.
    pub(crate) fn free(&mut self, event: &record::DriverFree, anomalies: &mut Anomalies) -> Option<HeldMemory> {
        let held = self.held.remove(&(event.kind, event.address));
        match held {
            Some(held) => self.discount(held),
            None => anomalies.unknown_driver_frees += 1,
        }
        held
    }

    /// Restores memory from a keyframe; `None` if its caller is unknown.
    ///
    /// Totals are restored separately.
    pub(crate) fn restore(&mut self, held: HeldMemory) -> Option<()> {
        self.sources.get(held.source as usize)?;
        if !held.segment && held.kind.on_device() {
            self.hold_for_source(held);
        }
        self.held.insert((held.kind, held.address), held);
        if held.graph != 0 {
            self.hold_private(held);
        }
        Some(())
    }

    pub(crate) fn discount(&mut self, held: HeldMemory) {
        if held.segment {
            self.totals.reserved = self.totals.reserved.saturating_sub(held.bytes);
            self.totals.segments = self.totals.segments.saturating_sub(1);
            if held.graph != 0 {
                self.totals.private_reserved = self.totals.private_reserved.saturating_sub(held.bytes);
                self.forget_private(held);
            }
        } else if held.kind.on_device() {
            let of_source = &mut self.held_by_source[held.source as usize];
            of_source.bytes = of_source.bytes.saturating_sub(held.bytes);
            self.totals.libraries = self.totals.libraries.saturating_sub(held.bytes);
            if self.sources[held.source as usize].is_nccl() {
                self.totals.nccl = self.totals.nccl.saturating_sub(held.bytes);
            } else if held.cell.is_some() {
                self.totals.arrays = self.totals.arrays.saturating_sub(held.bytes);
            }
        }
    }

    pub(crate) fn source(&mut self, source: DriverCaller) -> u32 {
        if let Some(id) = self.source_ids.get(&source) {
            return *id;
        }
        let id = self.sources.len() as u32;
        self.sources.push(source.clone());
        self.held_by_source.push(HeldBySource::default());
        self.source_ids.insert(source, id);
        id
    }

    pub(crate) fn map(&mut self, event: &record::Map) {
        self.unmap(event.address, event.bytes);
        self.mappings.insert(event.address, Mapping { bytes: event.bytes, handle: event.handle });
    }

    /// Removes mappings from an address range, whole or in part.
    pub(crate) fn unmap(&mut self, address: u64, bytes: u64) {
        let end = address.saturating_add(bytes);
        // A mapping that starts before the range may extend into it, and beyond it.
        if let Some((start, mapping)) = self.mappings.range(..address).next_back().map(|(start, m)| (*start, *m)) {
            let mapping_end = start.saturating_add(mapping.bytes);
            if mapping_end > address {
                self.mappings.insert(start, Mapping { bytes: address - start, ..mapping });
                if mapping_end > end {
                    self.mappings.insert(end, Mapping { bytes: mapping_end - end, ..mapping });
                }
            }
        }
        while let Some((start, mapping)) = self.mappings.range(address..end).next().map(|(start, m)| (*start, *m)) {
            self.mappings.remove(&start);
            let mapping_end = start.saturating_add(mapping.bytes);
            if mapping_end > end {
                self.mappings.insert(end, Mapping { bytes: mapping_end - end, ..mapping });
            }
        }
    }

    /// Samples the use of the whole device, while PyTorch's allocator holds `torch` bytes.
    pub(crate) fn sample(&mut self, event: &record::Used, torch: u64) {
        let own = torch.saturating_add(self.totals.libraries).saturating_sub(self.totals.moved);
        let process = event.process.unwrap_or(event.used);
        self.totals.context = process.saturating_sub(own);
        self.totals.other_processes = event.used.saturating_sub(process.max(own));
        self.totals.sampled = true;
        self.totals.process_known |= event.process.is_some();
        self.totals.total = event.total;
    }

    /// Returns the device's use: driver memory of this process, `torch` bytes of it PyTorch's, and the rest as last sampled.
    pub(crate) fn used(&self, torch: u64) -> u64 {
        torch
            .saturating_add(self.totals.libraries)
            .saturating_sub(self.totals.moved)
            .saturating_add(self.totals.context)
            .saturating_add(self.totals.other_processes)
    }

    /// Returns the address ranges of segments, in order.
    ///
    /// They are whole pieces of memory, and adjacent mappings of physical segment memory joined.
    pub(crate) fn segment_ranges(&self) -> Vec<SegmentRange> {
        let whole = self.held.values();
        let whole = whole.filter(|held| held.segment && !held.is_block() && held.kind != DriverKind::Physical);
        let range = |held: &HeldMemory| SegmentRange {
            address: held.address,
            bytes: held.bytes,
            is_expandable: false,
            pool: self.pool_of(held.graph),
        };
        let mut ranges: Vec<SegmentRange> = whole.map(range).collect();
        let mut joined: Vec<SegmentRange> = Vec::new();
        for (address, mapping) in &self.mappings {
            if !self.is_segment(mapping) {
                continue;
            }
            let pool = self.pool_of(self.capture_of(mapping));
            match joined.last_mut() {
                Some(range) if range.address.saturating_add(range.bytes) == *address && range.pool == pool => {
                    range.bytes = range.bytes.saturating_add(mapping.bytes);
                }
                _ => joined.push(SegmentRange { address: *address, bytes: mapping.bytes, is_expandable: true, pool }),
            }
        }
        ranges.append(&mut joined);
        ranges.sort_unstable();
        ranges
    }

    pub(crate) fn has_expandable_segments(&self) -> bool {
        self.mappings.values().any(|mapping| self.is_segment(mapping))
    }

    /// Returns true if a mapping belongs to a segment.
    fn is_segment(&self, mapping: &Mapping) -> bool {
        self.held.get(&(DriverKind::Physical, mapping.handle)).is_some_and(|held| held.segment)
    }

    pub(crate) fn is_mapped_segment(&self, address: u64) -> bool {
        let before = self.mappings.range(..=address).next_back();
        before.is_some_and(|(start, mapping)| address - start < mapping.bytes && self.is_segment(mapping))
    }

    /// Returns the memory outside PyTorch's allocator by caller, largest first.
    pub(crate) fn view(&self) -> Vec<DriverView> {
        let mut live = vec![(0_u64, 0_u64); self.sources.len()];
        for held in self.held.values().filter(|held| !held.segment) {
            let (bytes, count) = &mut live[held.source as usize];
            *bytes = bytes.saturating_add(held.bytes);
            *count += 1;
        }
        let mut views: Vec<DriverView> = std::iter::zip(&self.sources, live)
            .filter(|(_, (_, count))| *count > 0)
            .map(|(source, (bytes, count))| DriverView {
                kind: source.kind,
                call: source.call.clone(),
                library: source.library.clone(),
                live_bytes: bytes,
                live_allocations: count,
            })
            .collect();
        views.sort_by(|a, b| (b.live_bytes, &a.call, &a.library).cmp(&(a.live_bytes, &b.call, &b.library)));
        views
    }
}
