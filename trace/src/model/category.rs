//! What memory is used for.

use serde::{Deserialize, Serialize};

/// What memory is used for, in display order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Category {
    /// Parameters of modules.
    Parameter,
    /// Gradients of parameters, and intermediate results of backward.
    Gradient,
    /// What optimizers keep from step to step.
    OptimizerState,
    /// Buffers of modules.
    Buffer,
    /// Keys and values of tokens, kept by inference servers and by caches of Hugging Face.
    KvCache,
    /// Allocated in forward and still live when it ended.
    Activation,
    /// Allocated outside modules: batches, labels.
    Input,
    /// Freed before the phase that allocated it ended.
    Temporary,
    /// Parameters gathered from all ranks for a while: FSDP's.
    Gathered,
    /// Gradients to be summed over ranks and scattered to them: FSDP's.
    ReduceScatter,
    /// Gradients to be summed over ranks: the buckets of `DistributedDataParallel`.
    DdpBucket,
    /// Other buffers for what ranks exchange: broadcasts, what stages of a pipeline receive.
    Communication,
    /// Held by libraries: cuBLAS, cuDNN.
    Workspace,
    /// Taken from the driver by the program or by its libraries of arrays: CuPy, Numba, JAX.
    OtherArrays,
    /// Taken while torch.compile or Triton measures kernels.
    Benchmark,
    /// Allocated before memlab was loaded, and not known to be anything else.
    BeforeMemlab,
    /// Reserved by PyTorch's caching allocator but not allocated.
    Cached,
    /// NCCL's own memory, from the driver: its communicators.
    Nccl,
    /// The CUDA context: kernels, stacks, printf buffers.
    Context,
    /// Other processes' memory on this device.
    OtherProcesses,
    /// Matched by no rule.
    Other,
}

impl Category {
    /// The number of categories.
    pub const COUNT: usize = 21;

    /// All categories, in the order in which they are shown.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Parameter,
        Self::Gradient,
        Self::OptimizerState,
        Self::Buffer,
        Self::KvCache,
        Self::Activation,
        Self::Input,
        Self::Temporary,
        Self::Gathered,
        Self::ReduceScatter,
        Self::DdpBucket,
        Self::Communication,
        Self::Workspace,
        Self::OtherArrays,
        Self::Benchmark,
        Self::BeforeMemlab,
        Self::Cached,
        Self::Nccl,
        Self::Context,
        Self::OtherProcesses,
        Self::Other,
    ];

    /// Its name in reports' JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Parameter => "parameter",
            Self::Gradient => "gradient",
            Self::OptimizerState => "optimizer_state",
            Self::Buffer => "buffer",
            Self::KvCache => "kv_cache",
            Self::Activation => "activation",
            Self::Input => "input",
            Self::Temporary => "temporary",
            Self::Gathered => "gathered",
            Self::ReduceScatter => "reduce_scatter",
            Self::DdpBucket => "ddp_bucket",
            Self::Communication => "communication",
            Self::Workspace => "workspace",
            Self::OtherArrays => "other_arrays",
            Self::Benchmark => "benchmark",
            Self::BeforeMemlab => "before_memlab",
            Self::Cached => "cached",
            Self::Nccl => "nccl",
            Self::Context => "context",
            Self::OtherProcesses => "other_processes",
            Self::Other => "other",
        }
    }
}

/// Bytes of blocks by category, in the order of [`Category::ALL`]; 0 for those that are neither of blocks nor of arrays.
pub type CategoryBytes = [u64; Category::COUNT];
