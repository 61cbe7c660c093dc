//! Shares one private pool among CUDA graphs that have one each.

use crate::allocator::{PoolKey, Request, Requests};
use crate::plan::{Recording, peak_live_bytes};
use memlab_trace::PrivatePoolView;
use memlab_units::format::size;
use rustc_hash::FxHashSet;

use crate::advice::allocator_replay::AllocatorReplay;
use crate::advice::candidates::Candidates;
use crate::advice::cost::Cost;
use crate::advice::names;
use crate::advice::report::{Advice, Figure, Kind};

const HOW: &str = "\
import functools, torch
pool = torch.cuda.graph_pool_handle()
capture = functools.partial(torch.cuda.graph, pool=pool)  # in place of torch.cuda.graph
# Replay one at a time, and copy its outputs before another one is replayed";

type Pool = (u64, u64);

/// Tries one pool for all graphs that a line captures.
pub(crate) fn advise(
    recording: &Recording,
    replayed: Option<&Result<AllocatorReplay, String>>,
    candidates: &mut Candidates,
) {
    for (line, pools) in recording.model.private_pools_by_line(recording.device) {
        let ids: FxHashSet<Pool> = pools.iter().filter(|pool| pool.graphs > 0).filter_map(|pool| pool.id).collect();
        if ids.len() < 2 {
            continue;
        }
        let place = line.as_ref().map_or_else(|| "a library".to_owned(), |line| names::of_line(recording, line));
        let shared =
            |replayed: &AllocatorReplay| replayed.reserved_with(replayed.settings, &sharing(&replayed.requests, &ids));
        let reserved_bytes: u64 = pools.iter().map(|pool| pool.reserved_bytes).sum();
        match replayed {
            None => {}
            Some(Err(because)) => {
                let bound = reserved_bytes.saturating_sub(least_reserved(recording, &pools, &ids));
                let bound = size(bound);
                candidates.reject(Kind::SharePool, place, format!("{because}; one pool reserves at most {bound} less"));
            }
            Some(Ok(replayed)) => {
                let Some(bytes_after) = shared(replayed) else { continue };
                let [reserved, free] = [reserved_bytes, pools.iter().map(|pool| pool.free_bytes).sum()].map(size);
                let advice = Advice {
                    kind: Kind::SharePool,
                    place,
                    saved_bytes: replayed.reserved.saturating_sub(bytes_after),
                    figure: Figure::Reserved,
                    bytes_after,
                    cost: Cost::ZERO,
                    how: HOW.to_owned(),
                    because: format!(
                        "{} private pools hold {reserved}, of which {free} are unused. Only a replay of a pool's graphs \
                         uses them.",
                        ids.len()
                    ),
                };
                candidates.add(advice, None);
            }
        }
    }
}

/// Returns the requests with one pool in place of these.
fn sharing(requests: &Requests, ids: &FxHashSet<Pool>) -> Requests {
    let Some(first) = ids.iter().min() else { return requests.clone() };
    let mut places: Vec<PoolKey> = Vec::new();
    let shared: Vec<u16> = (requests.places.iter())
        .map(|place| {
            let pool = if ids.contains(&place.pool) { *first } else { place.pool };
            let place = PoolKey { pool, ..*place };
            let index = places.iter().position(|known| *known == place).unwrap_or_else(|| {
                places.push(place);
                places.len() - 1
            });
            index as u16
        })
        .collect();
    let moved = |request: &Request| match *request {
        Request::Allocate { id, place, size } => Request::Allocate { id, place: shared[usize::from(place)], size },
        request => request,
    };
    Requests { requests: requests.requests.iter().map(moved).collect(), places, ids: requests.ids }
}

/// Returns a lower bound of the shared pool's reserved bytes: the largest pool, and the tensors of all pools.
fn least_reserved(recording: &Recording, pools: &[PrivatePoolView], ids: &FxHashSet<Pool>) -> u64 {
    let largest = pools.iter().map(|pool| pool.reserved_bytes).max().unwrap_or(0);
    let live = peak_live_bytes(&recording.events, |id| {
        let allocation = &recording.allocations[id];
        ids.contains(&recording.places[usize::from(allocation.place)].pool).then_some(allocation.size)
    });
    largest.max(live)
}
