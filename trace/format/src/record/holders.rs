//! A search for the objects that hold memory, and the graph that it found.

use memlab_holders::{Edge, Node};
use serde::{Deserialize, Serialize};

/// Reason for a search.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SearchReason {
    /// The allocated memory grew.
    #[default]
    Growth,
    /// A forward began while much memory of an earlier one was allocated.
    Forward,
    /// PyTorch was about to raise an out-of-memory error.
    OutOfMemory,
    /// A person or the program asked.
    Request,
}

/// The moment of a search: what it found is about the blocks that were alive then.
///
/// ```
/// use memlab_format::{decode_line, record::SearchReason, Record};
/// let line = br#"{"holder_search":1,"time":81500233,"reason":"growth","pause_ns":5130211}"#;
/// let Record::HolderSearch(search) = decode_line(line)? else { panic!() };
/// assert_eq!((search.holder_search, search.reason), (1, SearchReason::Growth));
/// # Ok::<(), memlab_format::DecodeError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderSearch {
    /// Number of the search, from 1.
    pub holder_search: u32,
    /// Nanoseconds since the start of the trace.
    pub time: u64,
    /// Why memlab searched.
    #[serde(default)]
    pub reason: SearchReason,
    /// Time for which the program stood still.
    #[serde(default)]
    pub pause_ns: u64,
}

/// Part of the graph that a search found. The parts of a search are joined in their order.
///
/// ```
/// use memlab_format::{decode_line, Record};
/// let line = br#"{"holders":1,"nodes":[{"kind":"root"},{"kind":"sequence","name":"list","items":240,"memory":[140244]}],"edges":[[0,1,"global","history",12]],"last":true}"#;
/// let Record::Holders(part) = decode_line(line)? else { panic!() };
/// assert_eq!((part.nodes.len(), part.edges[0].label.as_str(), part.last), (2, "history", true));
/// # Ok::<(), memlab_format::DecodeError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Holders {
    /// Number of the search.
    pub holders: u32,
    /// Objects; the first of the first part is the virtual root.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<Node>,
    /// References between objects, by their positions among the nodes of all parts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub edges: Vec<Edge>,
    /// In the last part: nanoseconds from the start of the search to its end.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub took_ns: u64,
    /// True in the last part.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub last: bool,
    /// In the last part: why the search found nothing. Empty if it succeeded.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub failed: String,
    /// In the last part: the objects at which the search did not look, in words. Empty: it looked at all.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub skipped: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}
