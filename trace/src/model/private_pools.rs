//! Private pools of CUDA graphs: their segments in PyTorch's allocator, and the captures of their graphs.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use memlab_format::record::GraphCaptured;

/// A captured CUDA graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CapturedGraph {
    /// PyTorch's id of its pool.
    pub(crate) pool: (u64, u64),
    /// Stack at the end of the capture; 0: none.
    pub(crate) stack: u32,
    /// True if the program has released the graph.
    pub(crate) is_gone: bool,
}

/// Graphs of a device, and the memory in their pools, except memory that is mapped piece by piece.
#[derive(Clone, Default)]
pub(crate) struct PrivatePools {
    pub(crate) graphs: BTreeMap<u64, CapturedGraph>,
    /// First capture of each pool.
    firsts: BTreeMap<(u64, u64), u64>,
    /// Address → (bytes, capture).
    segments: BTreeMap<u64, (u64, u64)>,
}

impl PrivatePools {
    pub(crate) fn captured(&mut self, event: &GraphCaptured) {
        self.add(event.graph, CapturedGraph { pool: event.pool, stack: event.stack, is_gone: false });
    }

    pub(crate) fn add(&mut self, graph: u64, captured: CapturedGraph) {
        self.firsts.entry(captured.pool).or_insert(graph);
        self.graphs.insert(graph, captured);
    }

    pub(crate) fn gone(&mut self, graph: u64) {
        if let Some(graph) = self.graphs.get_mut(&graph) {
            graph.is_gone = true;
        }
    }

    pub(crate) fn hold(&mut self, address: u64, bytes: u64, graph: u64) {
        self.segments.insert(address, (bytes, graph));
    }

    pub(crate) fn free(&mut self, address: u64) {
        self.segments.remove(&address);
    }

    /// Returns the capture whose pool contains the segment with this address.
    pub(crate) fn capture_at(&self, address: u64) -> Option<u64> {
        let (start, (bytes, graph)) = self.segments.range(..=address).next_back()?;
        (address - start < *bytes).then_some(*graph)
    }

    /// Returns the first capture in the pool of a capture, which identifies the pool.
    ///
    /// A failed capture has a separate pool.
    pub(crate) fn first_of_pool(&self, graph: u64) -> u64 {
        let first = self.graphs.get(&graph).and_then(|known| self.firsts.get(&known.pool));
        first.copied().unwrap_or(graph)
    }

    /// Returns the captures of each pool, past and live, by the pool's first capture.
    pub(crate) fn pools(&self) -> BTreeMap<u64, Vec<CapturedGraph>> {
        let mut pools: BTreeMap<u64, Vec<CapturedGraph>> = BTreeMap::new();
        for (graph, captured) in &self.graphs {
            pools.entry(self.first_of_pool(*graph)).or_default().push(*captured);
        }
        pools
    }
}

/// Returns the distinct stacks that captured graphs of a pool.
pub(crate) fn stacks(graphs: &[CapturedGraph]) -> Vec<u32> {
    graphs.iter().map(|graph| graph.stack).collect::<BTreeSet<u32>>().into_iter().collect()
}
