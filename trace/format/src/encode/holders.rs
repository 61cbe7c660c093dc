//! Encoder of searches for holders. Unlike the other encoders it allocates: hooks do not call it.

use memlab_holders::HeapGraph;

use crate::record::{HolderSearch, Holders};

/// Objects and references per line.
const ITEMS_PER_LINE: usize = 256;

/// Returns the line of a search.
pub fn holder_search(search: &HolderSearch) -> Vec<u8> {
    line(search)
}

/// Returns the lines of the graph that a search found.
/// `took_ns`: nanoseconds that the search took. `skipped`: the objects at which it did not look, in words; else empty.
pub fn holders(search: u32, graph: &HeapGraph, took_ns: u64, skipped: &str) -> Vec<u8> {
    let mut lines = Vec::new();
    for nodes in graph.nodes.chunks(ITEMS_PER_LINE) {
        lines.extend(line(&Holders { holders: search, nodes: nodes.to_vec(), ..Holders::default() }));
    }
    for edges in graph.edges.chunks(ITEMS_PER_LINE) {
        lines.extend(line(&Holders { holders: search, edges: edges.to_vec(), ..Holders::default() }));
    }
    lines.extend(line(&Holders {
        holders: search,
        last: true,
        took_ns,
        skipped: skipped.to_owned(),
        ..Holders::default()
    }));
    lines
}

/// Returns the line of a search that found nothing.
pub fn failed_search(search: u32, why: &str) -> Vec<u8> {
    line(&Holders { holders: search, last: true, failed: why.to_owned(), ..Holders::default() })
}

/// Returns the line of one part of a graph.
pub fn holders_part(part: &Holders) -> Vec<u8> {
    line(part)
}

fn line(record: &impl serde::Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(record).unwrap_or_default();
    line.push(b'\n');
    line
}
