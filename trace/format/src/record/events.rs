//! Events: timestamped records.

use serde::{Deserialize, Serialize};

use super::text::Text;

/// Bit flags recorded with an allocation.
///
/// ```
/// use memlab_format::record::{Flags, Phase};
/// let flags = Flags(5);
/// assert_eq!(flags.phase(), Phase::Forward);
/// assert!(flags.has(Flags::GRADIENT_NODE) && !flags.has(Flags::WORKSPACE));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Flags(pub u32);

impl Flags {
    /// The allocating operation creates an autograd node.
    pub const GRADIENT_NODE: u32 = 4;
    /// A library workspace (cuBLAS and others).
    pub const WORKSPACE: u32 = 8;
    /// Allocated in backward; stack and layer are those of the forward operation.
    pub const LINKED: u32 = 16;
    /// Allocated in backward while forward runs again (activation checkpointing).
    pub const RECOMPUTE: u32 = 32;
    /// Allocated under `Module.to`: a parameter or buffer being moved.
    pub const MOVED_MODULE: u32 = 64;
    /// The driver memory became a segment of PyTorch's caching allocator.
    pub const SEGMENT: u32 = 128;
    /// A communication buffer of `DistributedDataParallel`, FSDP or a pipeline. Other flags give its purpose, if known.
    pub const COMMUNICATION: u32 = 256;
    /// Allocated before memlab was loaded.
    pub const BEFORE: u32 = 512;
    /// The driver memory is a block of PyTorch's allocator outside its segments (`PYTORCH_NO_CUDA_MEMORY_CACHING`).
    pub const BLOCK: u32 = 1024;
    /// Allocated in compiled code that no module called; the layer is that of the compiled operations.
    pub const OUTSIDE: u32 = 2048;
    /// Allocated while torch.compile or Triton benchmarks kernels.
    pub const BENCHMARK: u32 = 4096;
    /// With [`COMMUNICATION`](Self::COMMUNICATION): parameters gathered from all ranks.
    pub const GATHERED: u32 = 8192;
    /// With [`COMMUNICATION`](Self::COMMUNICATION): gradients for a reduce-scatter over the ranks.
    pub const REDUCE_SCATTER: u32 = 16384;
    /// With [`COMMUNICATION`](Self::COMMUNICATION): a gradient bucket of `DistributedDataParallel`.
    pub const DDP_BUCKET: u32 = 32768;
    /// A KV cache: that of an inference server, or a Hugging Face `Cache`.
    pub const KV_CACHE: u32 = 65536;

    /// The phase of the program.
    #[inline]
    pub fn phase(self) -> Phase {
        match self.0 & 3 {
            1 => Phase::Forward,
            2 => Phase::Backward,
            3 => Phase::Optimizer,
            _ => Phase::Other,
        }
    }

    /// Returns true if `flag` is set.
    #[inline]
    pub fn has(self, flag: u32) -> bool {
        self.0 & flag != 0
    }
}

/// Phase of the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// None of the other phases.
    #[default]
    Other,
    /// In a module's forward.
    Forward,
    /// In autograd's backward.
    Backward,
    /// In an optimizer's step.
    Optimizer,
}

impl Phase {
    /// Returns the name of the phase in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Other => "other",
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Optimizer => "optimizer",
        }
    }
}

/// `["a",time,thread,device,address,bytes,stack,layer,flags]`: PyTorch's allocator handed out a block.
///
/// ```
/// use memlab_format::{decode_line, Record};
/// let Record::Alloc(alloc) = decode_line(br#"["a",1834022117,1,0,140213447884800,4718592,5,7,5]"#)? else { panic!() };
/// assert_eq!((alloc.address, alloc.bytes, alloc.stack, alloc.layer), (140213447884800, 4718592, 5, 7));
/// # Ok::<(), memlab_format::DecodeError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Alloc {
    /// Nanoseconds since the trace's start.
    pub time: u64,
    /// The thread.
    pub thread: u32,
    /// The device.
    pub device: i32,
    /// The address of the block.
    pub address: u64,
    /// Size as PyTorch counts it (rounded up to 512).
    pub bytes: u64,
    /// The Python stack; 0: none.
    pub stack: u32,
    /// The layer; 0: none.
    pub layer: u32,
    /// Flags.
    pub flags: Flags,
}

/// `["f",time,thread,device,address]`: a block returned to PyTorch's allocator.
///
/// ```
/// use memlab_format::{decode_line, Record};
/// let Record::Free(free) = decode_line(br#"["f",1834031900,1,0,140213447884800]"#)? else { panic!() };
/// assert_eq!((free.time, free.address), (1834031900, 140213447884800));
/// # Ok::<(), memlab_format::DecodeError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Free {
    /// Nanoseconds since the trace's start.
    pub time: u64,
    /// The thread.
    pub thread: u32,
    /// The device.
    pub device: i32,
    /// The address of the block.
    pub address: u64,
}

/// The kind of driver memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DriverKind {
    /// `cuMemAlloc` and its variants.
    Device,
    /// From a stream-ordered pool.
    Async,
    /// Managed memory.
    Managed,
    /// An array.
    Array,
    /// `cuMemCreate`.
    Physical,
    /// Another process's memory.
    Imported,
    /// Pinned host memory.
    Pinned,
    /// Registered host memory.
    Registered,
    /// A kind this version does not know.
    #[default]
    #[serde(other)]
    Unknown,
}

impl DriverKind {
    /// Returns the name of the kind in the trace.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Async => "async",
            Self::Managed => "managed",
            Self::Array => "array",
            Self::Physical => "physical",
            Self::Imported => "imported",
            Self::Pinned => "pinned",
            Self::Registered => "registered",
            Self::Unknown => "unknown",
        }
    }

    /// Returns true for device memory that is charged to this process.
    pub const fn on_device(self) -> bool {
        !matches!(self, Self::Imported | Self::Pinned | Self::Registered)
    }
}

/// `["d+",time,thread,device,address,bytes,kind,call,library,stack,layer,flags]`: the process took memory from the driver.
///
/// `,graph,stream` follow if the memory became a segment of a private pool or of a stream other than the default.
///
/// ```
/// use memlab_format::{decode_line, record::{DriverKind, Flags}, Record};
/// let line = br#"["d+",1833999017,1,0,140213447884800,20971520,"device","cudaMalloc","libc10_cuda.so",5,7,129]"#;
/// let Record::DriverAlloc(alloc) = decode_line(line)? else { panic!() };
/// assert_eq!((alloc.kind, &*alloc.call), (DriverKind::Device, "cudaMalloc"));
/// assert!(alloc.flags.has(Flags::SEGMENT) && (alloc.graph, alloc.stream) == (0, 0));
/// # Ok::<(), memlab_format::DecodeError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverAlloc<'a> {
    /// Nanoseconds since the trace's start.
    pub time: u64,
    /// The thread.
    pub thread: u32,
    /// The device; -1 for host memory.
    pub device: i32,
    /// Address of the memory: a pointer, or the handle of an array.
    ///
    /// For physical memory and imported handles of it, memlab assigns a number, because the driver reuses handles while
    /// mappings exist.
    pub address: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// The kind of memory.
    pub kind: DriverKind,
    /// The outermost CUDA function in the call.
    pub call: Text<'a>,
    /// The library that called the function.
    pub library: Text<'a>,
    /// The Python stack; 0: none.
    pub stack: u32,
    /// The layer; 0: none.
    pub layer: u32,
    /// Flags.
    pub flags: Flags,
    /// Capture of the CUDA graph whose pool received the memory; 0: none.
    pub graph: u64,
    /// PyTorch's number of the stream that received the memory; 0: the default stream.
    pub stream: u64,
}

impl DriverAlloc<'_> {
    /// Returns true if PyTorch's allocator uses this memory directly as a block, outside its segments.
    ///
    /// Such a block has no `"a"` record. It occurs with `cudaMallocAsync` and without caching.
    ///
    /// ```
    /// use memlab_format::{decode_line, Record};
    /// let line = br#"["d+",1833999017,1,0,140213447884800,4194304,"device","cudaMalloc","libc10_cuda.so",5,7,1025]"#;
    /// let Record::DriverAlloc(alloc) = decode_line(line)? else { panic!() };
    /// assert!(alloc.is_block());
    /// # Ok::<(), memlab_format::DecodeError>(())
    /// ```
    pub fn is_block(&self) -> bool {
        self.flags.has(Flags::BLOCK) || (self.kind == DriverKind::Async && self.library.starts_with("libc10_cuda.so"))
    }
}

/// `["d-",time,thread,device,address,kind]`: the process returned memory to the driver.
///
/// ```
/// use memlab_format::{decode_line, record::DriverKind, Record};
/// let Record::DriverFree(free) = decode_line(br#"["d-",9833999017,1,0,140213447884800,"device"]"#)? else { panic!() };
/// assert_eq!((free.address, free.kind), (140213447884800, DriverKind::Device));
/// # Ok::<(), memlab_format::DecodeError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriverFree {
    /// Nanoseconds since the trace's start.
    pub time: u64,
    /// The thread.
    pub thread: u32,
    /// The device; -1 for host memory.
    pub device: i32,
    /// The pointer, handle or number, as in [`DriverAlloc::address`].
    pub address: u64,
    /// The kind of memory.
    pub kind: DriverKind,
}

/// `["g+",time,thread,device,graph,pool,pool,stack]`: a CUDA graph was captured.
///
/// ```
/// use memlab_format::{decode_line, Record};
/// let Record::GraphCaptured(graph) = decode_line(br#"["g+",2934022117,1,0,4,0,3,9]"#)? else { panic!() };
/// assert_eq!((graph.graph, graph.pool, graph.stack), (4, (0, 3), 9));
/// # Ok::<(), memlab_format::DecodeError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GraphCaptured {
    /// Nanoseconds since the trace's start.
    pub time: u64,
    /// The thread.
    pub thread: u32,
    /// The device.
    pub device: i32,
    /// The driver's number of the capture.
    pub graph: u64,
    /// PyTorch's id of the private pool that provides the graph's memory.
    pub pool: (u64, u64),
    /// The Python stack at the end of the capture; 0: none.
    pub stack: u32,
}

/// `["g-",time,thread,device,graph]`: the program released a CUDA graph.
///
/// ```
/// use memlab_format::{decode_line, Record};
/// let Record::GraphGone(graph) = decode_line(br#"["g-",9934022117,1,0,4]"#)? else { panic!() };
/// assert_eq!((graph.device, graph.graph), (0, 4));
/// # Ok::<(), memlab_format::DecodeError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GraphGone {
    /// Nanoseconds since the trace's start.
    pub time: u64,
    /// The thread.
    pub thread: u32,
    /// The device.
    pub device: i32,
    /// Number of the capture, as in [`GraphCaptured::graph`].
    pub graph: u64,
}

/// `["map",time,thread,device,address,bytes,handle]`: physical memory appears at a virtual address.
///
/// ```
/// use memlab_format::{decode_line, Record};
/// let Record::Map(map) = decode_line(br#"["map",1833999900,1,0,140213447884800,20971520,94000112233]"#)? else { panic!() };
/// assert_eq!((map.bytes, map.handle), (20971520, 94000112233));
/// # Ok::<(), memlab_format::DecodeError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Map {
    /// Nanoseconds since the trace's start.
    pub time: u64,
    /// The thread.
    pub thread: u32,
    /// The device.
    pub device: i32,
    /// The virtual address.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
    /// The physical memory: the `address` of its [`DriverAlloc`].
    pub handle: u64,
}

/// `["unmap",time,thread,device,address,bytes]`: physical memory disappears from a virtual address.
///
/// ```
/// use memlab_format::{decode_line, Record};
/// let Record::Unmap(unmap) = decode_line(br#"["unmap",9833999000,1,0,140213447884800,20971520]"#)? else { panic!() };
/// assert_eq!((unmap.address, unmap.bytes), (140213447884800, 20971520));
/// # Ok::<(), memlab_format::DecodeError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unmap {
    /// Nanoseconds since the trace's start.
    pub time: u64,
    /// The thread.
    pub thread: u32,
    /// The device.
    pub device: i32,
    /// The virtual address.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
}

/// `["oom",time,thread,device,requested,allocated,reserved,stack,layer]`: PyTorch ran out of memory.
///
/// ```
/// use memlab_format::{decode_line, Record};
/// let Record::Oom(oom) = decode_line(br#"["oom",5834022117,1,0,4294967296,7000000512,7516192768,5,7]"#)? else { panic!() };
/// assert_eq!((oom.requested, oom.allocated, oom.reserved), (4294967296, 7000000512, 7516192768));
/// # Ok::<(), memlab_format::DecodeError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Oom {
    /// Nanoseconds since the trace's start.
    pub time: u64,
    /// The thread.
    pub thread: u32,
    /// The device.
    pub device: i32,
    /// Bytes requested.
    pub requested: u64,
    /// Bytes allocated, as PyTorch reports.
    pub allocated: u64,
    /// Bytes reserved, as PyTorch reports.
    pub reserved: u64,
    /// The Python stack; 0: none.
    pub stack: u32,
    /// The layer; 0: none.
    pub layer: u32,
}

/// Category of a tensor in a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TagCategory {
    /// A parameter.
    Parameter,
    /// A parameter's gradient.
    Gradient,
    /// Optimizer state of a parameter.
    OptimizerState,
    /// A module's buffer.
    Buffer,
    /// An argument of an outermost module.
    Input,
}

impl TagCategory {
    /// Returns the name of the category in the trace.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Parameter => "parameter",
            Self::Gradient => "gradient",
            Self::OptimizerState => "optimizer_state",
            Self::Buffer => "buffer",
            Self::Input => "input",
        }
    }
}

/// `["tag",time,device,address,category,bytes,root,name]`: category and name of a tensor; its sharding may follow.
///
/// ```
/// use memlab_format::{decode_line, record::TagCategory, Record};
/// let line = br#"["tag",2834022200,0,140213547884800,"optimizer_state",4718592,3,"h.0.mlp.fc.weight:exp_avg"]"#;
/// let Record::Tag(tag) = decode_line(line)? else { panic!() };
/// assert_eq!((tag.category, tag.root, &*tag.name), (TagCategory::OptimizerState, 3, "h.0.mlp.fc.weight:exp_avg"));
/// let line = br#"["tag",2834022117,0,140213447884800,"parameter",1179648,3,"h.0.mlp.fc.weight","Shard(0)/4 on dp"]"#;
/// let Record::Tag(tag) = decode_line(line)? else { panic!() };
/// assert_eq!((tag.bytes, &*tag.shard), (1179648, "Shard(0)/4 on dp"));
/// # Ok::<(), memlab_format::DecodeError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tag<'a> {
    /// Nanoseconds since the trace's start.
    pub time: u64,
    /// The device.
    pub device: i32,
    /// Address of the tensor's storage, inside a live block.
    pub address: u64,
    /// The category.
    pub category: TagCategory,
    /// numel × itemsize; for a sharded tensor, of this rank's shard.
    pub bytes: u64,
    /// Layer id of the tensor's outermost module; 0: none.
    pub root: u32,
    /// Qualified name in that module; empty for an input.
    ///
    /// For optimizer state, `:` and the key of the state follow the name of its parameter.
    pub name: Text<'a>,
    /// Sharding over each mesh dimension; empty: not sharded.
    pub shard: Text<'a>,
}

/// `["step",time,thread,index]`: an optimizer step ended.
///
/// `["step",time,thread,index,1]`: an optimizer step ended whose GPU time was not recorded, because memlab times only some
/// steps.
///
/// ```
/// use memlab_format::{decode_line, record::Step, Record};
/// let record = decode_line(br#"["step",2934022117,1,0]"#)?;
/// assert_eq!(record, Record::Step(Step { time: 2934022117, thread: 1, index: 0, is_untimed: false }));
/// # Ok::<(), memlab_format::DecodeError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Nanoseconds since the trace's start.
    pub time: u64,
    /// The thread.
    pub thread: u32,
    /// Index of the step, from 0.
    pub index: u64,
    /// True if only some steps are timed and this one was not.
    pub is_untimed: bool,
}

/// `["read",time,thread,bytes,stack]`: the program copied device memory to the host, for example with `Tensor.item()`.
///
/// ```
/// use memlab_format::{decode_line, record::ReadBack, Record};
/// let record = decode_line(br#"["read",2834022300,1,8,5]"#)?;
/// assert_eq!(record, Record::ReadBack(ReadBack { time: 2834022300, thread: 1, bytes: 8, stack: 5 }));
/// # Ok::<(), memlab_format::DecodeError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadBack {
    /// Nanoseconds since the trace's start.
    pub time: u64,
    /// The thread.
    pub thread: u32,
    /// Bytes copied.
    pub bytes: u64,
    /// The Python stack; 0: none.
    pub stack: u32,
}

/// `["work",time,device,stack,layer,flags,kernel,calls,nanoseconds,bytes]`: work of the GPU for one place and kernel.
///
/// Counts from the previous such event of the same place and kernel.
///
/// ```
/// use memlab_format::{decode_line, record::Work, Record};
/// let record = decode_line(br#"["work",2834022300,0,5,7,1,3,12,91648,0]"#)?;
/// let Record::Work(Work { device: 0, kernel: 3, calls: 12, nanoseconds: 91648, .. }) = record else { panic!() };
/// # Ok::<(), memlab_format::DecodeError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Time of writing, in nanoseconds since the trace's start.
    pub time: u64,
    /// The device.
    pub device: i32,
    /// The Python stack that launched the work; 0: none.
    pub stack: u32,
    /// The layer; 0: none.
    pub layer: u32,
    /// Flags of the launching calls.
    pub flags: Flags,
    /// Number of a [`Kernel`](super::Kernel); 0: none, because the trace has too many names.
    pub kernel: u32,
    /// Number of runs.
    pub calls: u64,
    /// Total run time in nanoseconds.
    pub nanoseconds: u64,
    /// Bytes copied or filled.
    pub bytes: u64,
}

/// `["step_work",time,device,step,steps,calls,nanoseconds,to_device,to_host]`: work of the GPU launched in one or more
/// steps.
///
/// Covers `steps` steps from `step` on, and counts from the previous such event of these steps.
///
/// ```
/// use memlab_format::{decode_line, record::StepWork, Record};
/// let record = decode_line(br#"["step_work",2834022300,0,7,1,912,41912648,4096,4]"#)?;
/// let Record::StepWork(StepWork { step: 7, calls: 912, to_device_bytes: 4096, .. }) = record else { panic!() };
/// # Ok::<(), memlab_format::DecodeError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepWork {
    /// Time of writing, in nanoseconds since the trace's start.
    pub time: u64,
    /// The device.
    pub device: i32,
    /// First step, from 0; work launched before the end of step 0 belongs to step 0.
    pub step: u64,
    /// Number of steps, usually 1.
    pub steps: u64,
    /// Number of kernels, copies and fills.
    pub calls: u64,
    /// Their total run time in nanoseconds.
    pub nanoseconds: u64,
    /// Bytes copied from the host.
    pub to_device_bytes: u64,
    /// Bytes copied to the host.
    pub to_host_bytes: u64,
}

/// `["step_wait",time,step,data,launch]`: time in which the program gave the GPU no work.
///
/// ```
/// use memlab_format::{decode_line, record::StepWait, Record};
/// let record = decode_line(br#"["step_wait",2834022300,7,46200000,null]"#)?;
/// let wait = StepWait { time: 2834022300, step: 7, data_ns: 46200000, launch_ns: None };
/// assert_eq!(record, Record::StepWait(wait));
/// # Ok::<(), memlab_format::DecodeError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepWait {
    /// Nanoseconds since the trace's start.
    pub time: u64,
    /// Index of the step, from 0.
    pub step: u64,
    /// Nanoseconds since the end of the previous step that the thread of the step spent waiting for batches of a DataLoader.
    pub data_ns: u64,
    /// Nanoseconds from the end of the previous step to the first launch; `None`: unknown.
    pub launch_ns: Option<u64>,
}

/// `["busy",time,device,busy,waiting,idle]`: nanoseconds that a GPU was busy, waited for the host, or idled for other
/// reasons.
///
/// Counts from the previous such event.
///
/// ```
/// use memlab_format::{decode_line, record::Busy, Record};
/// let record = decode_line(br#"["busy",2834022300,0,900,80,20]"#)?;
/// let Record::Busy(Busy { busy: 900, waiting: 80, idle: 20, .. }) = record else { panic!() };
/// # Ok::<(), memlab_format::DecodeError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Busy {
    /// Time of writing, in nanoseconds since the trace's start.
    pub time: u64,
    /// The device.
    pub device: i32,
    /// Nanoseconds in which something ran.
    pub busy: u64,
    /// Nanoseconds in which nothing ran because the next work was not launched yet.
    pub waiting: u64,
    /// Nanoseconds in which nothing ran although work was launched.
    pub idle: u64,
}

/// `["ran",time,device,stream,start,nanoseconds,stack,layer,flags,kernel,bytes]`: one kernel, copy or fill on a GPU.
///
/// ```
/// use memlab_format::{decode_line, record::Ran, Record};
/// let record = decode_line(br#"["ran",2834022300,0,7,2833000000,91648,5,7,1,3,0]"#)?;
/// let Record::Ran(Ran { stream: 7, start: 2833000000, nanoseconds: 91648, kernel: 3, .. }) = record else { panic!() };
/// # Ok::<(), memlab_format::DecodeError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ran {
    /// Time of writing, in nanoseconds since the trace's start.
    pub time: u64,
    /// The device.
    pub device: i32,
    /// Stream number of CUPTI.
    pub stream: u32,
    /// Start, in nanoseconds since the trace's start.
    pub start: u64,
    /// Run time in nanoseconds.
    pub nanoseconds: u64,
    /// The Python stack that launched the work; 0: none.
    pub stack: u32,
    /// The layer; 0: none.
    pub layer: u32,
    /// Flags of the launching call.
    pub flags: Flags,
    /// Number of a [`Kernel`](super::Kernel); 0: none, because the trace has too many names.
    pub kernel: u32,
    /// Bytes copied or filled.
    pub bytes: u64,
}

/// `["range",time,thread,range]`: the thread entered or left a range named by the program.
///
/// ```
/// use memlab_format::{decode_line, record::InRange, Record};
/// let record = decode_line(br#"["range",1834020000,1,3]"#)?;
/// assert_eq!(record, Record::InRange(InRange { time: 1834020000, thread: 1, range: 3 }));
/// # Ok::<(), memlab_format::DecodeError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InRange {
    /// Nanoseconds since the trace's start.
    pub time: u64,
    /// The thread.
    pub thread: u32,
    /// Innermost range of the thread from now on; 0: none.
    pub range: u32,
}

/// `["used",time,device,used,total,process]`: memory use of the whole device, as the driver reports it.
///
/// ```
/// use memlab_format::{decode_line, Record};
/// let Record::Used(used) = decode_line(br#"["used",1934022117,0,1073741824,150754820096,891289600]"#)? else { panic!() };
/// assert_eq!((used.used, used.process), (1073741824, Some(891289600)));
/// # Ok::<(), memlab_format::DecodeError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Nanoseconds since the trace's start.
    pub time: u64,
    /// The device.
    pub device: i32,
    /// Bytes in use by all processes.
    pub used: u64,
    /// Size of the device's memory in bytes, without the driver's own reservation.
    pub total: u64,
    /// Bytes that the driver reports for this process; `None` if it reports none.
    pub process: Option<u64>,
}

/// `["moved",time,device,bytes]`: bytes of the process's device memory that are in host memory from now on.
///
/// The memory was offloaded, or a limit made it spill.
///
/// ```
/// use memlab_format::{decode_line, Record};
/// let Record::Moved(moved) = decode_line(br#"["moved",5934022117,0,4437573632]"#)? else { panic!() };
/// assert_eq!((moved.device, moved.bytes), (0, 4437573632));
/// # Ok::<(), memlab_format::DecodeError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Nanoseconds since the trace's start.
    pub time: u64,
    /// The device.
    pub device: i32,
    /// Bytes in host memory; 0: none.
    pub bytes: u64,
}

/// `["lost",time,events]`: number of events missing before this line.
///
/// They came faster than memlab could keep the trace within its size limit.
///
/// ```
/// use memlab_format::{decode_line, record::Lost, Record};
/// let record = decode_line(br#"["lost",6934022117,20481]"#)?;
/// assert_eq!(record, Record::Lost(Lost { time: 6934022117, events: 20481 }));
/// # Ok::<(), memlab_format::DecodeError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Nanoseconds since the trace's start.
    pub time: u64,
    /// Number of missing events, at least.
    pub events: u64,
}

/// `["end",time,code,signal]`: the process ended.
///
/// ```
/// use memlab_format::{decode_line, record::End, Record};
/// let record = decode_line(br#"["end",12934022117,0,null]"#)?;
/// assert_eq!(record, Record::End(End { time: 12934022117, code: Some(0), signal: None }));
/// # Ok::<(), memlab_format::DecodeError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct End {
    /// Nanoseconds since the trace's start.
    pub time: u64,
    /// Exit code, if the process exited.
    pub code: Option<i32>,
    /// Signal that ended the process, if one did.
    pub signal: Option<i32>,
}
