//! A question for holders, and its answer.

use crate::graph::{EdgeKind, Node};

/// A block of device memory, as far as the question is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Its address: several addresses may lie in one block.
    pub block: u64,
    /// Its size, as the allocator accounts for it.
    pub bytes: u64,
    /// True if the question is about this block.
    pub is_wanted: bool,
    /// Its owner, if no Python object leads to it.
    pub owner: NativeOwner,
}

/// The owner of a block that no Python object leads to, as the block's allocation shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NativeOwner {
    /// The allocation does not show it.
    #[default]
    Unknown,
    /// A library, such as cuBLAS with its workspace.
    Library,
    /// `DistributedDataParallel`, with a bucket of gradients.
    Ddp,
}

/// One step of a path: a reference and the object that it leads to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathStep {
    /// The kind of reference by which the object before refers to this one.
    pub reference: EdgeKind,
    /// Name of the variable or attribute, or key of the element; may be empty.
    pub label: String,
    /// Line that stores the reference; 0: unknown.
    pub stored_at: u32,
    /// The object. It has no addresses.
    pub object: Node,
}

/// An object or names that keep blocks alive, and the effect of their release.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holder {
    /// One path if one object or name holds the blocks. Several if they are freed only when all these names are released.
    pub paths: Vec<Vec<PathStep>>,
    /// Number of further such names.
    pub more: usize,
    /// Bytes of the question that it holds.
    pub bytes: u64,
    /// Bytes of all blocks that are freed when it is released.
    pub releases: u64,
    /// Number of these blocks.
    pub blocks: usize,
    /// Bytes among them that autograd saved for backward.
    pub for_backward: u64,
    /// Tensors that it holds, without those inside autograd graphs.
    pub tensors: u32,
    /// Keys that repeat among the many dictionaries below it and that hold the blocks: the adapters of a model, for
    /// instance. If there are any, the release is that of their entries.
    pub keys: Vec<String>,
    /// In garbage: the reference that closes most of the cycles.
    pub cycle: Option<PathStep>,
    /// Of garbage: the number of collections that free it all. A collection frees the outermost of custom autograd functions
    /// that follow each other.
    pub collections: u32,
}

/// The holders of the blocks in question.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Explanation {
    /// The holders, the one with the most bytes first.
    pub holders: Vec<Holder>,
    /// Bytes of the question that no object leads to.
    pub unreached: u64,
}
