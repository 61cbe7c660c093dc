//! Private pools of CUDA graphs: PyTorch's allocator serves only their graphs from them.

use std::sync::Arc;

use memlab_trace::{DeviceView, Line, Model, PrivatePoolView};
use memlab_units::format::size;

use super::finding::{Finding, Kind, is_significant, on};
use super::words::Words;
use crate::file_names::FileNames;

/// Reports private pools whose free bytes exceed a fifth of the reserved bytes.
const MIN_FREE_DIVISOR: u64 = 5;

/// Pools of the graphs captured by one line.
#[derive(Clone, Debug, Default)]
pub struct PoolsOfLine {
    /// The line; `None`: no Python frame.
    pub line: Option<Arc<Line>>,
    /// Number of pools.
    pub pools: u64,
    /// Number of live graphs.
    pub graphs: u64,
    /// Number of segments.
    pub segments: u64,
    /// Bytes in segments.
    pub reserved_bytes: u64,
    /// Bytes in segments without tensors.
    pub free_bytes: u64,
    /// Free bytes of pools whose graphs are all gone.
    pub released_bytes: u64,
}

/// Private pools of a device by the line that captured their graphs, largest first.
pub fn by_line(model: &Model, device: i32) -> Vec<PoolsOfLine> {
    let sum = |(line, pools): (Option<Arc<Line>>, Vec<PrivatePoolView>)| {
        let mut sum = PoolsOfLine { line, ..PoolsOfLine::default() };
        for pool in pools {
            sum.pools += 1;
            sum.graphs += pool.graphs;
            sum.segments += pool.segments;
            sum.reserved_bytes = sum.reserved_bytes.saturating_add(pool.reserved_bytes);
            sum.free_bytes = sum.free_bytes.saturating_add(pool.free_bytes);
            if pool.graphs == 0 {
                sum.released_bytes = sum.released_bytes.saturating_add(pool.free_bytes);
            }
        }
        sum
    };
    model.private_pools_by_line(device).into_iter().map(sum).collect()
}

/// Finding on memory in private pools without tensors.
pub(super) fn graph_pools(model: &Model, device: &DeviceView, several: bool) -> Option<Finding> {
    let groups = by_line(model, device.index);
    let sum = |of: fn(&PoolsOfLine) -> u64| groups.iter().map(of).fold(0_u64, u64::saturating_add);
    let (reserved, bytes, released) = (sum(|g| g.reserved_bytes), sum(|g| g.free_bytes), sum(|g| g.released_bytes));
    let is_much = bytes > device.reserved_bytes / MIN_FREE_DIVISOR && bytes >= device.total_bytes / 100;
    // A single shared pool cannot be reduced further.
    let largest = groups
        .iter()
        .filter(|group| group.pools > 1 || group.released_bytes > 0)
        .max_by_key(|group| group.free_bytes)?;
    if !is_much || !is_significant(bytes, device) {
        return None;
    }
    let files = FileNames::of(model);
    let pools = sum(|group| group.pools);
    let mut what = Words::strong(Kind::GraphPools.title()).and(format!(
        "{}: {} CUDA graphs hold {} in {pools} private pools. {} of it hold no tensor and serve no allocation outside the \
         graphs. Most graphs were captured at ",
        on(device, several),
        sum(|group| group.graphs),
        size(reserved),
        size(bytes)
    ));
    what = match &largest.line {
        Some(line) => what.and_code(format!("{} {}", files.place(line), line.function)),
        None => what.and("no Python line"),
    };
    let mut next = Vec::new();
    if groups.iter().any(|group| group.pools > 1) {
        next.push(
            "Share one pool among graphs that are replayed one at a time: create it with \
             `pool = torch.cuda.graph_pool_handle()`, and pass pool=pool to torch.cuda.graph. memlab advise estimates the \
             saving."
                .to_owned(),
        );
    }
    if released > 0 {
        next.push(format!("The graphs of {} are gone: `torch.cuda.empty_cache()` frees it.", size(released)));
    }
    let next = next.join(" ");
    Some(Finding {
        kind: Kind::GraphPools,
        device: device.index,
        line: largest.line.clone(),
        bytes,
        short: Words::strong(Kind::GraphPools.title()).and(format!(
            "{} of CUDA graphs: {} without a tensor",
            on(device, several),
            size(bytes)
        )),
        what: what.and("."),
        next,
        holders: Vec::new(),
    })
}
