//! Rules for the category of every block.
//!
//! The category of some blocks is known at allocation (a workspace, a communication buffer, a module being moved). Others
//! are tagged later (parameters, gradients, optimizer state, buffers). The category of the rest depends on when they are
//! freed:
//!
//! | made in | given back before it ends | alive when it ends | it ends at | meanwhile shown as |
//! |---|---|---|---|---|
//! | forward | temporary | activation | the thread's next allocation outside forward, any backward, its step | activation |
//! | backward | temporary | gradient | the device's next allocation outside backward, any step | gradient |
//! | backward, running forward again | – | activation at once | – | activation |
//! | optimizer | temporary | optimizer state | any step | temporary |
//! | other, before any forward | other | input | the thread's next allocation in forward | other |
//! | other, later | temporary | input | the thread's next allocation in forward | input |
//!
//! A block that outlives steps without being replaced is neither a batch nor part of a graph. Such inputs, and such
//! activations without a layer, become "other" ([`super::long_lived`]), unless they were an argument of a module.
//!
//! A tag overrides these rules, with two exceptions. Parameters and buffers in a communication buffer are temporary copies,
//! gathered from all ranks. A key-value cache stays one even if it is a buffer of a module. Gradients in a communication
//! buffer do follow their tag (`gradient_as_bucket_view`, FSDP's shards).

use serde::{Deserialize, Serialize};

use super::category::Category;
use memlab_format::record::{Flags, Phase, TagCategory};

/// A category of blocks, decided or pending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Classification {
    Parameter,
    Gradient,
    OptimizerState,
    Buffer,
    KvCache,
    Activation,
    Input,
    Temporary,
    Gathered,
    ReduceScatter,
    DdpBucket,
    Communication,
    Workspace,
    OtherArrays,
    Benchmark,
    BeforeMemlab,
    /// No rule matches.
    Other,
    /// Pending: allocated in a forward that has not ended.
    InForward,
    /// Pending: allocated in a backward that has not ended.
    InBackward,
    /// Pending: allocated in an optimizer step that has not ended.
    InOptimizer,
    /// Pending: allocated outside modules; forward has not begun.
    BeforeForward,
    /// Pending: allocated outside modules; no forward has been seen in this run.
    BeforeAnyForward,
}

impl Classification {
    /// Returns the displayed category.
    pub(crate) fn category(self) -> Category {
        match self {
            Self::Parameter => Category::Parameter,
            Self::Gradient | Self::InBackward => Category::Gradient,
            Self::OptimizerState => Category::OptimizerState,
            Self::Buffer => Category::Buffer,
            Self::KvCache => Category::KvCache,
            Self::Activation | Self::InForward => Category::Activation,
            Self::Input | Self::BeforeForward => Category::Input,
            Self::Temporary | Self::InOptimizer => Category::Temporary,
            Self::Gathered => Category::Gathered,
            Self::ReduceScatter => Category::ReduceScatter,
            Self::DdpBucket => Category::DdpBucket,
            Self::Communication => Category::Communication,
            Self::Workspace => Category::Workspace,
            Self::OtherArrays => Category::OtherArrays,
            Self::Benchmark => Category::Benchmark,
            Self::BeforeMemlab => Category::BeforeMemlab,
            Self::Other | Self::BeforeAnyForward => Category::Other,
        }
    }

    /// Returns the index of its category in [`super::category::CategoryBytes`].
    #[inline]
    pub(crate) fn category_index(self) -> usize {
        self.category() as usize
    }

    /// Returns true while the category is pending.
    #[inline]
    pub(crate) fn is_pending(self) -> bool {
        self.if_it_survives() != self
    }

    /// Returns the classification of a pending block that is still live at the decision.
    #[inline]
    pub(crate) fn if_it_survives(self) -> Self {
        match self {
            Self::InForward => Self::Activation,
            Self::InBackward => Self::Gradient,
            Self::InOptimizer => Self::OptimizerState,
            Self::BeforeForward | Self::BeforeAnyForward => Self::Input,
            decided => decided,
        }
    }

    /// Returns the classification of a pending block that is freed.
    #[inline]
    pub(crate) fn if_freed(self) -> Self {
        match self {
            Self::BeforeAnyForward => Self::Other,
            pending if pending.is_pending() => Self::Temporary,
            decided => decided,
        }
    }

    /// Returns true if a tag of `category` in the block does not change the classification.
    pub(crate) fn outranks(self, category: TagCategory) -> bool {
        match self {
            Self::Gathered | Self::ReduceScatter | Self::DdpBucket | Self::Communication => {
                matches!(category, TagCategory::Parameter | TagCategory::Buffer)
            }
            Self::KvCache => category == TagCategory::Buffer,
            _ => false,
        }
    }

    /// Returns true for allocations outside modules, which become inputs when a module is called with them.
    pub(crate) fn may_be_input(self) -> bool {
        matches!(self, Self::BeforeForward | Self::BeforeAnyForward | Self::Input | Self::Other)
    }

    /// Returns true for provisional inputs and activations, which may become long-lived.
    #[inline]
    pub(crate) fn may_become_long_lived(self, layer: u32) -> bool {
        self == Self::Input || self == Self::Activation && layer == 0
    }
}

impl From<TagCategory> for Classification {
    fn from(category: TagCategory) -> Self {
        match category {
            TagCategory::Parameter => Self::Parameter,
            TagCategory::Gradient => Self::Gradient,
            TagCategory::OptimizerState => Self::OptimizerState,
            TagCategory::Buffer => Self::Buffer,
            TagCategory::Input => Self::Input,
        }
    }
}

/// Returns the phase for the rules.
///
/// An allocation outside modules that creates no autograd node is not forward, even if its flags contain forward. An
/// allocation inside a module is forward.
#[inline]
pub(crate) fn effective_phase(layer: u32, flags: Flags) -> Phase {
    let in_module = layer != 0 && !flags.has(Flags::OUTSIDE);
    match flags.phase() {
        Phase::Forward | Phase::Other if in_module || flags.has(Flags::GRADIENT_NODE) => Phase::Forward,
        Phase::Forward | Phase::Other => Phase::Other,
        phase => phase,
    }
}

/// Returns the classification of a new block. `seen_forward`: this run has had a forward.
#[inline]
pub(crate) fn first_classification(phase: Phase, flags: Flags, seen_forward: bool) -> Classification {
    if flags.has(Flags::WORKSPACE) {
        return Classification::Workspace;
    }
    if flags.has(Flags::BENCHMARK) {
        return Classification::Benchmark;
    }
    if flags.has(Flags::BEFORE) {
        return Classification::BeforeMemlab;
    }
    if flags.has(Flags::COMMUNICATION) {
        return communication(flags);
    }
    // With an autograd node, backward keeps it: an activation like any other.
    if flags.has(Flags::KV_CACHE) && !flags.has(Flags::GRADIENT_NODE) {
        return Classification::KvCache;
    }
    if flags.has(Flags::MOVED_MODULE) {
        return Classification::Parameter;
    }
    match phase {
        Phase::Forward => Classification::InForward,
        Phase::Backward if flags.has(Flags::RECOMPUTE) => Classification::Activation,
        Phase::Backward => Classification::InBackward,
        Phase::Optimizer => Classification::InOptimizer,
        Phase::Other if seen_forward => Classification::BeforeForward,
        Phase::Other => Classification::BeforeAnyForward,
    }
}

/// Returns the purpose of a communication buffer. Traces before version 0.2 do not contain it.
#[inline]
fn communication(flags: Flags) -> Classification {
    if flags.has(Flags::GATHERED) {
        Classification::Gathered
    } else if flags.has(Flags::REDUCE_SCATTER) {
        Classification::ReduceScatter
    } else if flags.has(Flags::DDP_BUCKET) {
        Classification::DdpBucket
    } else {
        Classification::Communication
    }
}
