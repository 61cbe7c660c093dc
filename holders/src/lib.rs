//! Finds the objects that keep memory alive: the graph, the memory that the release of each frees, and its names.
//!
//! The recorded process finds the graph ([`HeapGraph`]), reduces it and writes it to the trace. Readers ask it for
//! the holders of a set of blocks ([`explain`]).
//!
//! # Layers
//!
//! ```text
//! explain, reduce       what holds blocks; a smaller graph with the same answers
//! search                walks the dominator tree to the holders
//! describe, paths       names, places and cures; the path to an object
//! answer, dominators    questions and answers; the dominator tree
//! graph
//! ```

mod answer;
mod describe;
mod dominators;
mod explain;
mod graph;
mod paths;
mod reduce;
mod search;
#[cfg(test)]
mod tests;

pub use answer::{Explanation, Holder, Memory, NativeOwner, PathStep};
pub use describe::StoredAt;
pub use explain::{bytes_held, explain};
pub use graph::{Edge, EdgeKind, HeapGraph, Node, NodeKind, ROOT, leading_to};
pub use reduce::reduced;
