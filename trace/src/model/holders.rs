//! Searches for what holds memory: the blocks that were alive, and the graph of the objects that led to them.

use std::sync::Arc;

use memlab_holders::{Explanation, HeapGraph, Holder, Memory, NativeOwner, bytes_held, explain};
use serde::{Deserialize, Serialize};

use super::category::Category;
use super::device::DeviceState;
use memlab_format::record::{self, SearchReason};

/// Maximum number of searches kept, the latest.
const MAX_SEARCHES: usize = 6;
/// Maximum number of objects and references of one search: what a trace contains may be anything.
const MAX_ITEMS: usize = 4 << 20;

/// One search.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Search {
    number: u32,
    time: u64,
    step: u64,
    reason: SearchReason,
    pause_ns: u64,
    /// Steps ended or iterations begun that growth is compared over, by device.
    compared: Vec<(i32, u64)>,
    /// Sorted by device and address.
    blocks: Vec<BlockAtSearch>,
    graph: HeapGraph,
    is_complete: bool,
    #[serde(default)]
    failed: String,
    #[serde(default)]
    skipped: String,
}

/// A block that was alive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "BlockRow", into = "BlockRow")]
pub(crate) struct BlockAtSearch {
    pub(crate) device: i32,
    address: u64,
    bytes: u64,
    pub(crate) stack: u32,
    pub(crate) layer: u32,
    /// As in [`CellKey`](super::cell::CellKey).
    pub(crate) owner: u32,
    native_owner: NativeOwner,
}

/// A block in a keyframe. The last is the native owner's number in [`NATIVE_OWNERS`].
type BlockRow = (i32, u64, u64, u32, u32, u32, u8);

const NATIVE_OWNERS: [NativeOwner; 3] = [NativeOwner::Unknown, NativeOwner::Library, NativeOwner::Ddp];

impl From<BlockRow> for BlockAtSearch {
    fn from((device, address, bytes, stack, layer, owner, native): BlockRow) -> Self {
        let native_owner = NATIVE_OWNERS.get(usize::from(native)).copied().unwrap_or_default();
        Self { device, address, bytes, stack, layer, owner, native_owner }
    }
}

/// The owner of a block of this category, if no Python object leads to it.
fn native_owner(category: Category) -> NativeOwner {
    match category {
        Category::Workspace => NativeOwner::Library,
        Category::DdpBucket => NativeOwner::Ddp,
        _ => NativeOwner::Unknown,
    }
}

impl From<BlockAtSearch> for BlockRow {
    fn from(block: BlockAtSearch) -> Self {
        let BlockAtSearch { device, address, bytes, stack, layer, owner, native_owner } = block;
        (device, address, bytes, stack, layer, owner, native_owner as u8)
    }
}

/// A search that has a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SearchView {
    /// Its number, from 1.
    pub number: u32,
    /// Its time, in nanoseconds since the start of the trace.
    pub time: u64,
    /// Optimizer steps that had ended.
    pub step: u64,
}

/// The holders of blocks that a search found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldView {
    /// Number of the search, from 1.
    pub search: u32,
    /// Its time, in nanoseconds since the start of the trace.
    pub time: u64,
    /// Optimizer steps that had ended.
    pub step: u64,
    /// Why memlab searched.
    pub reason: SearchReason,
    /// Time for which the program stood still.
    pub pause_ns: u64,
    /// Bytes of the blocks in question that were alive then.
    pub bytes: u64,
    /// Objects at which the search did not look, in words. Empty: it looked at all. Else they may hold the memory, too.
    pub skipped: String,
    /// Their holders.
    pub explanation: Explanation,
}

/// The latest searches.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Searches {
    pub(crate) list: Vec<Arc<Search>>,
}

impl Searches {
    /// Begins a search: the blocks that are alive now are those in question.
    pub(crate) fn begin(&mut self, begun: &record::HolderSearch, step: u64, devices: &[Option<Box<DeviceState>>]) {
        let (mut blocks, mut compared) = (Vec::new(), Vec::new());
        for (device, state) in (0..).zip(devices) {
            let Some(state) = state else { continue };
            compared.push((device, state.growth.ended));
            blocks.extend(state.blocks.sorted().into_iter().map(|block| {
                let key = state.ledger.cells[block.cell as usize].key;
                BlockAtSearch {
                    device,
                    address: block.address,
                    bytes: block.bytes,
                    stack: key.stack,
                    layer: key.layer,
                    owner: key.owner,
                    native_owner: native_owner(key.classification.category()),
                }
            }));
        }
        self.add(Search {
            number: begun.holder_search,
            time: begun.time,
            step,
            reason: begun.reason,
            pause_ns: begun.pause_ns,
            compared,
            blocks,
            ..Search::default()
        });
    }

    /// Adds a search: one that begins, or one of a keyframe, which may contain anything.
    pub(crate) fn add(&mut self, mut search: Search) {
        search.is_complete &= search.graph.is_valid();
        if self.list.len() >= MAX_SEARCHES {
            self.list.remove(0);
        }
        self.list.push(Arc::new(search));
    }

    /// Adds a part of a search's graph; `None` if it makes no sense.
    pub(crate) fn add_holders(&mut self, part: record::Holders) -> Option<()> {
        let found = self.list.iter_mut().rfind(|search| search.number == part.holders && !search.is_complete);
        let search = Arc::make_mut(found?);
        let graph = &mut search.graph;
        if graph.nodes.len() + graph.edges.len() > MAX_ITEMS {
            return None;
        }
        graph.nodes.extend(part.nodes);
        graph.edges.extend(part.edges);
        if part.last {
            search.is_complete = part.failed.is_empty() && search.graph.is_valid();
            search.failed = part.failed;
            search.skipped = part.skipped;
            return (search.is_complete || !search.failed.is_empty()).then_some(());
        }
        Some(())
    }

    /// Forgets all searches but the latest. Returns false if there are no others.
    pub(crate) fn shorten(&mut self) -> bool {
        let are_many = self.list.len() > 1;
        if are_many {
            self.list.drain(..self.list.len() - 1);
        }
        are_many
    }

    /// The searches that have a result, the latest last.
    pub(crate) fn complete_ones(&self) -> impl DoubleEndedIterator<Item = SearchView> {
        let view = |search: &Arc<Search>| SearchView { number: search.number, time: search.time, step: search.step };
        self.list.iter().filter(|search| search.is_complete).map(view)
    }

    /// Number of the latest search that began at `time` or later and has ended, or the reason if it found nothing.
    pub(crate) fn ended_since(&self, time: u64) -> Option<Result<u32, &str>> {
        let mut ended = self.list.iter().rev().filter_map(|search| Some((search, search.outcome()?)));
        ended.find(|(search, _)| search.time >= time).map(|(search, outcome)| outcome.map(|()| search.number))
    }

    /// Reasons for which searches found nothing.
    pub(crate) fn failures(&self) -> impl Iterator<Item = &str> {
        self.list.iter().rev().map(|search| search.failed.as_str()).filter(|failed| !failed.is_empty())
    }

    /// Returns the holders of the memory that these stacks allocated on a device, at the search at which most of it was alive, after
    /// `from` steps or iterations.
    pub(crate) fn of_stacks(&self, device: i32, stacks: &[u32], from: u64) -> Option<HeldView> {
        let is_later = |search: &&Arc<Search>| search.compared.iter().any(|(on, ended)| *on == device && *ended > from);
        let is_wanted = |block: &BlockAtSearch| block.device == device && stacks.contains(&block.stack);
        let complete = self.list.iter().filter(|search| search.is_complete).filter(is_later);
        let (bytes, search) = complete
            .map(|search| (search.bytes(&is_wanted), search))
            .max_by_key(|(bytes, search)| (*bytes, search.number))?;
        (bytes > 0).then(|| search.explained(&is_wanted))
    }

    /// Returns the holders of the blocks that contain these addresses, at the search of this number.
    pub(crate) fn of_addresses(&self, number: u32, addresses: &[u64]) -> Option<HeldView> {
        let search = self.complete(number)?;
        let mut sorted = addresses.to_vec();
        sorted.sort_unstable();
        let holds = |block: &BlockAtSearch| {
            let next = sorted.partition_point(|address| *address < block.address);
            sorted.get(next).is_some_and(|address| address - block.address < block.bytes)
        };
        search.blocks.iter().any(holds).then(|| search.explained(&holds))
    }

    /// Returns the holders of the wanted blocks, at the search of this number.
    pub(crate) fn of_blocks_at(&self, number: u32, is_wanted: &dyn Fn(&BlockAtSearch) -> bool) -> Option<HeldView> {
        Some(self.complete(number)?.explained(is_wanted))
    }

    /// Returns the bytes of the wanted blocks that holders of any search held at the search of this number.
    pub(crate) fn bytes_held_at(
        &self,
        number: u32,
        is_wanted: &dyn Fn(&BlockAtSearch) -> bool,
        holders: &[&Holder],
    ) -> Option<Vec<u64>> {
        let search = self.complete(number)?;
        Some(bytes_held(&search.graph, &search.memory(is_wanted), search.finder(), holders))
    }

    fn complete(&self, number: u32) -> Option<&Search> {
        self.list.iter().rfind(|search| search.number == number && search.is_complete).map(Arc::as_ref)
    }

    /// True if the search of this number has ended; with the reason if it found nothing.
    pub(crate) fn ended(&self, number: u32) -> Option<Result<(), &str>> {
        self.list.iter().rfind(|search| search.number == number)?.outcome()
    }

    /// Returns the holders of the memory of a device at the latest search, or at the latest for a reason.
    pub(crate) fn at(&self, device: i32, reason: Option<SearchReason>) -> Option<HeldView> {
        let is_it = |search: &&Arc<Search>| search.is_complete && reason.is_none_or(|reason| search.reason == reason);
        let search = self.list.iter().rfind(is_it)?;
        Some(search.explained(&|block| block.device == device))
    }
}

impl Search {
    /// `Ok` if the search has ended, the reason if it found nothing; `None`: it runs.
    fn outcome(&self) -> Option<Result<(), &str>> {
        match self.failed.as_str() {
            "" => self.is_complete.then_some(Ok(())),
            why => Some(Err(why)),
        }
    }

    fn bytes(&self, is_wanted: &dyn Fn(&BlockAtSearch) -> bool) -> u64 {
        self.blocks.iter().filter(|block| is_wanted(block)).fold(0, |sum, block| sum.saturating_add(block.bytes))
    }

    fn explained(&self, is_wanted: &dyn Fn(&BlockAtSearch) -> bool) -> HeldView {
        HeldView {
            search: self.number,
            time: self.time,
            step: self.step,
            reason: self.reason,
            pause_ns: self.pause_ns,
            bytes: self.bytes(is_wanted),
            skipped: self.skipped.clone(),
            explanation: explain(&self.graph, &self.memory(is_wanted), self.finder()),
        }
    }

    fn memory(&self, is_wanted: &dyn Fn(&BlockAtSearch) -> bool) -> Vec<Memory> {
        let memory = |block: &BlockAtSearch| Memory {
            block: block.address,
            bytes: block.bytes,
            is_wanted: is_wanted(block),
            owner: block.native_owner,
        };
        self.blocks.iter().map(memory).collect()
    }

    /// Finds the index of the block that contains an address.
    fn finder(&self) -> impl Fn(u64) -> Option<usize> {
        let mut by_address: Vec<usize> = (0..self.blocks.len()).collect();
        by_address.sort_by_key(|index| self.blocks[*index].address);
        move |address: u64| {
            let after = by_address.partition_point(|index| self.blocks[*index].address <= address);
            let index = by_address[after.checked_sub(1)?];
            (address - self.blocks[index].address < self.blocks[index].bytes).then_some(index)
        }
    }
}
