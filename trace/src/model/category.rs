//! Categories of memory by purpose.

use serde::{Deserialize, Serialize};

/// Category of memory by purpose, in display order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Category {
    /// Parameters of modules.
    Parameter,
    /// Gradients of parameters, and intermediate results of backward.
    Gradient,
    /// State that optimizers keep from step to step.
    OptimizerState,
    /// Buffers of modules.
    Buffer,
    /// KV caches of inference servers and of Hugging Face.
    KvCache,
    /// Allocated in forward and still live at the end of forward.
    Activation,
    /// Allocated outside modules: batches, labels.
    Input,
    /// Freed before the end of the phase that allocated it.
    Temporary,
    /// Parameters gathered from all ranks for a while, by FSDP.
    Gathered,
    /// Gradients for a reduce-scatter over the ranks, by FSDP.
    ReduceScatter,
    /// Gradients for a sum over the ranks: the buckets of `DistributedDataParallel`.
    DdpBucket,
    /// Other communication buffers: of broadcasts, and of pipeline stages that receive.
    Communication,
    /// Workspaces of libraries: cuBLAS, cuDNN.
    Workspace,
    /// Driver memory of the program or its array libraries: CuPy, Numba, JAX.
    OtherArrays,
    /// Allocated while torch.compile or Triton benchmarks kernels.
    Benchmark,
    /// Allocated before memlab was loaded, without another known category.
    BeforeMemlab,
    /// Reserved by PyTorch's caching allocator but not allocated.
    Cached,
    /// Driver memory of NCCL itself: its communicators.
    Nccl,
    /// The CUDA context: kernels, stacks, printf buffers.
    Context,
    /// Other processes' memory on this device.
    OtherProcesses,
    /// No rule matches.
    Other,
}

impl Category {
    /// The number of categories.
    pub const COUNT: usize = 21;

    /// All categories, in display order.
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

    /// Returns its name in the JSON of reports.
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

/// Bytes by category, in the order of [`Category::ALL`]; 0 for categories of neither blocks nor arrays.
pub type CategoryBytes = [u64; Category::COUNT];
