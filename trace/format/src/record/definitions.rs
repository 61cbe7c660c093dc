//! Definitions: records that events refer to by id.

use serde::{Deserialize, Serialize};

use super::text::Text;

/// The first line of a trace.
///
/// ```
/// use memlab_format::{decode_line, Record};
/// let line = br#"{"memlab":1,"version":"0.1.0","id":"5f3c9a1be07d4c22","pid":4242,"parent_pid":4200,"start_unix_ns":1795163951000000000,"command":["python","train.py"],"directory":"/home/ada/gpt","host":"gpu1","rank":0,"local_rank":0,"world_size":2}"#;
/// let Record::Header(header) = decode_line(line)? else { panic!() };
/// assert_eq!((header.pid, header.rank, header.command.len()), (4242, Some(0), 2));
/// # Ok::<(), memlab_format::DecodeError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// The version of the format.
    pub memlab: u32,
    /// Version of memlab that wrote the trace.
    #[serde(default)]
    pub version: String,
    /// Random id of the trace.
    #[serde(default)]
    pub id: String,
    /// The process.
    #[serde(default)]
    pub pid: u32,
    /// Id of the parent process.
    #[serde(default)]
    pub parent_pid: u32,
    /// Start of the trace, in nanoseconds since 1970. All other times count from it.
    #[serde(default)]
    pub start_unix_ns: u64,
    /// The `memlab run` that started the process; within another one, `OUTER/INNER`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// The command line.
    #[serde(default)]
    pub command: Vec<String>,
    /// The working directory.
    #[serde(default)]
    pub directory: String,
    /// The host name.
    #[serde(default)]
    pub host: String,
    /// `RANK`, if a launcher set it.
    #[serde(default)]
    pub rank: Option<u32>,
    /// `LOCAL_RANK`, if a launcher set it.
    #[serde(default)]
    pub local_rank: Option<u32>,
    /// `WORLD_SIZE`, if a launcher set it.
    #[serde(default)]
    pub world_size: Option<u32>,
}

/// A device.
///
/// ```
/// use memlab_format::{decode_line, Record};
/// let line = br#"{"device":0,"name":"NVIDIA H200","total_bytes":150754820096,"bus_id":"0000:1B:00.0"}"#;
/// let Record::Device(device) = decode_line(line)? else { panic!() };
/// assert_eq!((device.device, device.total_bytes), (0, 150754820096));
/// # Ok::<(), memlab_format::DecodeError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// The CUDA ordinal as the process sees it.
    pub device: i32,
    /// Name of the device.
    #[serde(default)]
    pub name: String,
    /// Bytes of memory.
    #[serde(default)]
    pub total_bytes: u64,
    /// PCI bus id.
    #[serde(default)]
    pub bus_id: Option<String>,
}

/// Bandwidth of a device's link to the host, from the generation and width of the link.
///
/// ```
/// use memlab_format::{decode_line, Record};
/// let Record::Link(link) = decode_line(br#"{"link":0,"bytes_per_second":63015384615}"#)? else { panic!() };
/// assert_eq!((link.link, link.bytes_per_second), (0, 63015384615));
/// # Ok::<(), memlab_format::DecodeError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// The device.
    pub link: i32,
    /// Bytes per second in one direction.
    #[serde(default)]
    pub bytes_per_second: u64,
}

/// The limit that memlab sets for the process on a device.
///
/// Written each time the limit is set or lifted.
///
/// ```
/// use memlab_format::{decode_line, Record};
/// let Record::Limit(limit) = decode_line(br#"{"limit":0,"bytes":8589934592,"on_limit":"spill"}"#)? else { panic!() };
/// assert_eq!((limit.limit, limit.bytes, limit.on_limit.as_str()), (0, Some(8589934592), "spill"));
/// # Ok::<(), memlab_format::DecodeError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// The device.
    pub limit: i32,
    /// The limit in bytes; `None`: no limit.
    #[serde(default)]
    pub bytes: Option<u64>,
    /// Handling of an allocation beyond the limit: `oom` or `spill`.
    #[serde(default)]
    pub on_limit: String,
}

/// Memory that other processes hold on a device, largest first.
///
/// Written each time it changes.
///
/// ```
/// use memlab_format::{decode_line, Record};
/// let Record::Others(others) = decode_line(br#"{"others":0,"processes":[[4300,3221225472],[977,1048576]]}"#)? else { panic!() };
/// assert_eq!((others.others, others.processes[0]), (0, (4300, 3221225472)));
/// # Ok::<(), memlab_format::DecodeError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Others {
    /// The device.
    pub others: i32,
    /// Process ids and bytes, as the driver reports them.
    #[serde(default)]
    pub processes: Vec<(u32, u64)>,
}

/// A thread.
///
/// ```
/// use memlab_format::{decode_line, Record};
/// let Record::Thread(thread) = decode_line(br#"{"thread":3,"tid":4267,"name":"pt_autograd_0"}"#)? else { panic!() };
/// assert_eq!((thread.thread, thread.tid, thread.name.as_str()), (3, 4267, "pt_autograd_0"));
/// # Ok::<(), memlab_format::DecodeError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thread {
    /// Id of the thread in events.
    pub thread: u32,
    /// Thread id of the operating system.
    #[serde(default)]
    pub tid: u32,
    /// Name of the thread.
    #[serde(default)]
    pub name: String,
}

/// Software found in the process.
///
/// ```
/// use memlab_format::{decode_line, Record};
/// let line = br#"{"software":"torch","version":"2.15.0","root":"/home/ada/.venv/lib/python3.11/site-packages/torch"}"#;
/// let Record::Software(software) = decode_line(line)? else { panic!() };
/// assert_eq!((software.software.as_str(), software.version.as_str()), ("torch", "2.15.0"));
/// # Ok::<(), memlab_format::DecodeError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Software {
    /// Name of the software.
    pub software: String,
    /// Version of the software.
    #[serde(default)]
    pub version: String,
    /// Folder of the software.
    ///
    /// Frames below the folder of torch belong to PyTorch; frames below that of python, to the standard library.
    #[serde(default)]
    pub root: String,
}

/// Owner of a file or folder of code whose path does not show it.
///
/// ```
/// use memlab_format::{decode_line, record::CodeKind, Record};
/// let line = br#"{"code":"program","root":"/home/ada/.venv/lib/python3.11/site-packages/trainer"}"#;
/// let Record::CodeRoot(root) = decode_line(line)? else { panic!() };
/// assert_eq!((root.code, root.root.ends_with("/trainer")), (CodeKind::Program, true));
/// # Ok::<(), memlab_format::DecodeError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodeRoot {
    /// Owner of the code.
    pub code: CodeKind,
    /// A file, or a folder with its contents.
    #[serde(default)]
    pub root: String,
}

/// Owner of the code below a [`CodeRoot`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CodeKind {
    /// The program, for example the module that `python -m` runs, even if it is installed like a library.
    Program,
    /// Code generated by a compiler.
    Generated,
    /// Unknown kind of a newer memlab.
    #[default]
    #[serde(other)]
    Unknown,
}

impl CodeKind {
    /// Returns the name of the kind in a trace.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Program => "program",
            Self::Generated => "generated",
            Self::Unknown => "unknown",
        }
    }
}

/// File name for compiled code whose source line is not known.
pub const UNKNOWN_COMPILED: &str = "(compiled code, unknown line)";

/// File name of the line that counts the benchmarks of compilers.
pub const BENCHMARKS: &str = "(torch.compile's benchmarks)";

/// A Python frame: one place in one function.
///
/// ```
/// use memlab_format::{decode_line, Record};
/// let line = br#"{"frame":12,"file":"/home/ada/gpt/train.py","line":31,"function":"GPT.forward"}"#;
/// let Record::Frame(frame) = decode_line(line)? else { panic!() };
/// assert_eq!((frame.frame, frame.line, &*frame.function), (12, Some(31), "GPT.forward"));
/// # Ok::<(), memlab_format::DecodeError>(())
/// ```
///
/// A frame of code that torch.compile generated has `stands_for`: the program's frames that it was compiled from, outermost
/// first. The list is empty while they are not known:
///
/// ```
/// use memlab_format::{decode_line, Record};
/// let line = br#"{"frame":14,"stands_for":[12,13],"file":"/tmp/torchinductor_ada/fi/cfijm6.py","line":603,"function":"call"}"#;
/// let Record::Frame(frame) = decode_line(line)? else { panic!() };
/// assert_eq!(frame.stands_for, Some(vec![12, 13]));
/// # Ok::<(), memlab_format::DecodeError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frame<'a> {
    /// Id of the frame.
    pub frame: u32,
    /// Program frames that this compiled code stands for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stands_for: Option<Vec<u32>>,
    /// The source file.
    #[serde(borrow, default)]
    pub file: Text<'a>,
    /// The line, from 1; `None` where the code object has none.
    #[serde(default)]
    pub line: Option<u32>,
    /// The function's qualified name.
    #[serde(borrow, default)]
    pub function: Text<'a>,
}

/// The text of a source line at the time it ran.
///
/// ```
/// use memlab_format::{decode_line, Record};
/// let line = br#"{"source":"/home/ada/gpt/train.py","line":31,"text":"        x = self.fc(x)"}"#;
/// let Record::Source(source) = decode_line(line)? else { panic!() };
/// assert_eq!((source.line, &*source.text), (31, "        x = self.fc(x)"));
/// # Ok::<(), memlab_format::DecodeError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source<'a> {
    /// The source file.
    #[serde(borrow)]
    pub source: Text<'a>,
    /// The line, from 1.
    #[serde(default)]
    pub line: u32,
    /// Text; the beginning of a long line.
    #[serde(borrow, default)]
    pub text: Text<'a>,
}

/// A stack: a node of a trie.
///
/// ```
/// use memlab_format::{decode_line, record::Stack, Record};
/// let record = decode_line(br#"{"stack":5,"parent":4,"frame":12}"#)?;
/// assert_eq!(record, Record::Stack(Stack { stack: 5, parent: 4, frame: 12 }));
/// # Ok::<(), memlab_format::DecodeError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stack {
    /// Id of the stack.
    pub stack: u32,
    /// The caller's stack; 0: none.
    #[serde(default)]
    pub parent: u32,
    /// Frame on top of the caller's stack.
    #[serde(default)]
    pub frame: u32,
}

/// A layer: one module as called by another; a node of a trie.
///
/// ```
/// use memlab_format::{decode_line, Record};
/// let Record::Layer(layer) = decode_line(br#"{"layer":7,"parent":3,"type":"Linear","name":"h.0.mlp.fc"}"#)? else { panic!() };
/// assert_eq!((layer.layer, layer.class.as_str(), layer.name.as_deref()), (7, "Linear", Some("h.0.mlp.fc")));
/// let Record::Layer(layer) = decode_line(br#"{"layer":1,"parent":0,"type":"Net","name":"","variable":"GAN.G"}"#)? else { panic!() };
/// assert_eq!(layer.variable.as_deref(), Some("GAN.G"));
/// # Ok::<(), memlab_format::DecodeError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layer {
    /// Id of the layer.
    pub layer: u32,
    /// The layer whose `forward` called this one; 0: an outermost module.
    #[serde(default)]
    pub parent: u32,
    /// The module's class.
    #[serde(default, rename = "type")]
    pub class: String,
    /// Qualified name in the outermost module, `""` for the outermost module itself; `None`: not known (yet).
    #[serde(default)]
    pub name: Option<String>,
    /// Variable or attribute that holds an outermost module, if one was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variable: Option<String>,
}

/// A range named by the program: a node of a trie.
///
/// ```
/// use memlab_format::{decode_line, Record};
/// let Record::Range(range) = decode_line(br#"{"range":3,"parent":1,"name":"attention"}"#)? else { panic!() };
/// assert_eq!((range.range, range.parent, range.name.as_str()), (3, 1, "attention"));
/// # Ok::<(), memlab_format::DecodeError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    /// Id of the range.
    pub range: u32,
    /// Enclosing range; 0: none.
    #[serde(default)]
    pub parent: u32,
    /// Name of the range.
    #[serde(default)]
    pub name: String,
}

/// Name of a kernel, copy or fill on a GPU.
///
/// ```
/// use memlab_format::{decode_line, Record};
/// let Record::Kernel(kernel) = decode_line(br#"{"kernel":3,"name":"copy pinned to device"}"#)? else { panic!() };
/// assert_eq!((kernel.kernel, kernel.name.as_str()), (3, "copy pinned to device"));
/// # Ok::<(), memlab_format::DecodeError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kernel {
    /// Number of the name.
    pub kernel: u32,
    /// Mangled name of a kernel, a kind of copy, or `fill`.
    #[serde(default)]
    pub name: String,
}

/// Part of the requests to PyTorch's allocator on a device, in order. Written when a run is recorded for a plan.
///
/// Each entry is `[kind,address,bytes,stream,pool,pool]`, decoded as an [`AllocatorRequest`]. The k-th allocation over all
/// parts is the k-th [`Alloc`](super::Alloc) of the device. That event has the block's size, stack and layer.
///
/// ```
/// use memlab_format::{decode_line, record::{AllocatorRequest, AllocatorRequestKind}, Record};
/// let line = br#"{"requests":0,"asked":[[0,140213447884800,4000,0,0,0],[3,140213447884800,4000,0,0,0]]}"#;
/// let Record::Requests(part) = decode_line(line)? else { panic!() };
/// let requests: Vec<AllocatorRequest> = part.entries().collect();
/// assert_eq!((part.requests, requests[0].kind, requests[0].bytes), (0, AllocatorRequestKind::Allocation, 4000));
/// assert_eq!(requests[1].kind, AllocatorRequestKind::Free);
/// # Ok::<(), memlab_format::DecodeError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requests {
    /// The device.
    pub requests: i32,
    /// The entries.
    #[serde(default)]
    pub asked: Vec<[u64; 6]>,
}

impl Requests {
    /// Returns the entries whose kind this version knows.
    pub fn entries(&self) -> impl Iterator<Item = AllocatorRequest> + '_ {
        self.asked.iter().filter_map(|&[kind, address, bytes, stream, first, second]| {
            Some(AllocatorRequest {
                kind: AllocatorRequestKind::of(kind)?,
                address,
                bytes,
                stream,
                pool: (first, second),
            })
        })
    }
}

/// A request to PyTorch's allocator, or an action of the allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocatorRequest {
    /// Kind of the request.
    pub kind: AllocatorRequestKind,
    /// Address of the block or segment.
    pub address: u64,
    /// Requested bytes before rounding, or bytes of the segment.
    pub bytes: u64,
    /// The stream's handle; 0 is the default stream.
    pub stream: u64,
    /// Private pool of a CUDA graph or `MemPool`; zeros: the common pool.
    pub pool: (u64, u64),
}

/// Kind of an [`AllocatorRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocatorRequestKind {
    /// 0: memory for a tensor was requested and granted.
    Allocation,
    /// 1: the tensor is gone, but other streams may still use its memory.
    FreeRequested,
    /// 2: the other streams finished with that memory.
    FreeCompleted,
    /// 3: the tensor is gone, and its memory is free at once.
    Free,
    /// 4: a segment, or part of one, went back to the driver.
    SegmentFree,
    /// 5: memory for a tensor was requested and refused: out of memory.
    OutOfMemory,
    /// 6: another phase of the program begins.
    ///
    /// The address holds the phase: 0 training, 1 evaluation, 2 saving, 3 the rest, 4 it failed.
    Phase,
}

impl AllocatorRequestKind {
    fn of(number: u64) -> Option<Self> {
        Some(match number {
            0 => Self::Allocation,
            1 => Self::FreeRequested,
            2 => Self::FreeCompleted,
            3 => Self::Free,
            4 => Self::SegmentFree,
            5 => Self::OutOfMemory,
            6 => Self::Phase,
            _ => return None,
        })
    }
}
