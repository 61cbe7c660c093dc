//! Workspaces that PyTorch allocates for cuBLAS, per product or per handle and stream, depending on its version
//! (`CUBLAS_WORKSPACE_CONFIG`).

use memlab_trace::record::Flags;
use memlab_units::format::size;

use crate::advice::block_lifetimes::{BlockLifetimes, Change};
use crate::advice::candidates::Candidates;
use crate::advice::cost::Cost;
use crate::advice::report::{Advice, Figure, Kind};

const VARIABLE: &str = "CUBLAS_WORKSPACE_CONFIG";

/// Eight buffers of 16 KiB: the minimum that cuBLAS's documentation names.
const SMALL_WORKSPACE: (&str, u64) = (":16:8", (8 * 16) << 10);

/// Smaller savings do not justify products that may become slower.
const MIN_SAVED_BYTES: u64 = 16 << 20;

pub(crate) fn advise(lifetimes: &BlockLifetimes<'_>, candidates: &mut Candidates) {
    let (setting, small) = SMALL_WORKSPACE;
    let is_large = |id: &u32| {
        lifetimes.recording.allocations[*id as usize].flags.has(Flags::WORKSPACE) && lifetimes.size(*id) > small
    };
    let large: Vec<u32> = (0..lifetimes.spans.len() as u32).filter(is_large).collect();
    let Some(largest) = large.iter().map(|id| lifetimes.size(*id)).max() else { return };
    let change = Change { resized: large.iter().map(|id| (*id, small)).collect(), ..Change::default() };
    let (before, after) = (lifetimes.peak().bytes, lifetimes.peak_with(&change).bytes);
    let saved_bytes = before.saturating_sub(after);
    if saved_bytes < MIN_SAVED_BYTES {
        let saved = size(saved_bytes);
        candidates.reject(Kind::Workspaces, VARIABLE, format!("saves {saved}, and slows matrix products"));
        return;
    }
    let advice = Advice {
        kind: Kind::Workspaces,
        place: VARIABLE.to_owned(),
        saved_bytes,
        figure: Figure::Allocated,
        bytes_after: after,
        cost: Cost::UNKNOWN,
        how: format!("export {VARIABLE}={setting}"),
        because: format!(
            "Workspaces of cuBLAS take up to {}, and {} with this setting. Matrix products that need large workspaces become \
             slower.",
            size(largest),
            size(small)
        ),
    };
    candidates.add(advice, Some(change));
}
