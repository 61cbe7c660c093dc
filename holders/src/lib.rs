//! Who keeps memory alive: the graph of objects that hold it, what each of them would release, and the path to name.
//!
//! The recorded process finds the graph ([`HeapGraph`]), reduces it and writes it to the trace. Readers ask it what
//! holds a set of blocks ([`explain`]).
//!
//! # Layers
//!
//! ```text
//! describe             names, places and cures
//! explain    reduce    answers; a smaller graph with the same answers
//! dominators
//! graph
//! ```

mod describe;
mod dominators;
mod explain;
mod graph;
mod reduce;
#[cfg(test)]
mod tests;

pub use describe::StoredAt;
pub use explain::{Explanation, Holder, Memory, PathStep, explain};
pub use graph::{Edge, EdgeKind, HeapGraph, Node, NodeKind, ROOT};
pub use reduce::reduced;
