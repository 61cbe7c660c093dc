//! Definitions: written once, referred to by id.

use serde::{Deserialize, Serialize};

use super::text::Text;

/// The first line of a trace.
///
/// ```
/// use memlab_trace::{decode_line, Record};
/// let line = br#"{"memlab":1,"version":"0.1.0","id":"5f3c9a1be07d4c22","pid":4242,"parent_pid":4200,"start_unix_ns":1795163951000000000,"command":["python","train.py"],"directory":"/home/ada/gpt","host":"gpu1","rank":0,"local_rank":0,"world_size":2}"#;
/// let Record::Header(header) = decode_line(line)? else { panic!() };
/// assert_eq!((header.pid, header.rank, header.command.len()), (4242, Some(0), 2));
/// # Ok::<(), memlab_trace::DecodeError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// The version of the format.
    pub memlab: u32,
    /// The version of memlab that wrote.
    #[serde(default)]
    pub version: String,
    /// A random identity of this trace.
    #[serde(default)]
    pub id: String,
    /// The process.
    #[serde(default)]
    pub pid: u32,
    /// Its parent.
    #[serde(default)]
    pub parent_pid: u32,
    /// The start of the trace, from which times count: nanoseconds since 1970.
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
/// use memlab_trace::{decode_line, Record};
/// let line = br#"{"device":0,"name":"NVIDIA H200","total_bytes":150754820096,"bus_id":"0000:1B:00.0"}"#;
/// let Record::Device(device) = decode_line(line)? else { panic!() };
/// assert_eq!((device.device, device.total_bytes), (0, 150754820096));
/// # Ok::<(), memlab_trace::DecodeError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// The CUDA ordinal as the process sees it.
    pub device: i32,
    /// Its name.
    #[serde(default)]
    pub name: String,
    /// Bytes of memory.
    #[serde(default)]
    pub total_bytes: u64,
    /// Its PCI bus id.
    #[serde(default)]
    pub bus_id: Option<String>,
}

/// How fast a device's link to the host is, by its generation and width.
///
/// ```
/// use memlab_trace::{decode_line, Record};
/// let Record::Link(link) = decode_line(br#"{"link":0,"bytes_per_second":63015384615}"#)? else { panic!() };
/// assert_eq!((link.link, link.bytes_per_second), (0, 63015384615));
/// # Ok::<(), memlab_trace::DecodeError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// The device.
    pub link: i32,
    /// Bytes per second in one direction.
    #[serde(default)]
    pub bytes_per_second: u64,
}

/// The limit that memlab sets for the process on a device, each time it is set or lifted.
///
/// ```
/// use memlab_trace::{decode_line, Record};
/// let Record::Limit(limit) = decode_line(br#"{"limit":0,"bytes":8589934592,"on_limit":"spill"}"#)? else { panic!() };
/// assert_eq!((limit.limit, limit.bytes, limit.on_limit.as_str()), (0, Some(8589934592), "spill"));
/// # Ok::<(), memlab_trace::DecodeError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// The device.
    pub limit: i32,
    /// The limit in bytes; `None`: no limit.
    #[serde(default)]
    pub bytes: Option<u64>,
    /// What happens to an allocation beyond it: `oom` or `spill`.
    #[serde(default)]
    pub on_limit: String,
}

/// What other processes hold on a device, each time that changes. The largest come first.
///
/// ```
/// use memlab_trace::{decode_line, Record};
/// let Record::Others(others) = decode_line(br#"{"others":0,"processes":[[4300,3221225472],[977,1048576]]}"#)? else { panic!() };
/// assert_eq!((others.others, others.processes[0]), (0, (4300, 3221225472)));
/// # Ok::<(), memlab_trace::DecodeError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Others {
    /// The device.
    pub others: i32,
    /// Process ids, as the driver reports them, with the bytes of each.
    #[serde(default)]
    pub processes: Vec<(u32, u64)>,
}

/// A thread.
///
/// ```
/// use memlab_trace::{decode_line, Record};
/// let Record::Thread(thread) = decode_line(br#"{"thread":3,"tid":4267,"name":"pt_autograd_0"}"#)? else { panic!() };
/// assert_eq!((thread.thread, thread.tid, thread.name.as_str()), (3, 4267, "pt_autograd_0"));
/// # Ok::<(), memlab_trace::DecodeError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thread {
    /// Its id in events.
    pub thread: u32,
    /// The id that the system gives it.
    #[serde(default)]
    pub tid: u32,
    /// Its name.
    #[serde(default)]
    pub name: String,
}

/// Software found in the process.
///
/// ```
/// use memlab_trace::{decode_line, Record};
/// let line = br#"{"software":"torch","version":"2.15.0","root":"/home/ada/.venv/lib/python3.11/site-packages/torch"}"#;
/// let Record::Software(software) = decode_line(line)? else { panic!() };
/// assert_eq!((software.software.as_str(), software.version.as_str()), ("torch", "2.15.0"));
/// # Ok::<(), memlab_trace::DecodeError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Software {
    /// Its name.
    pub software: String,
    /// Its version.
    #[serde(default)]
    pub version: String,
    /// Its folder; frames in that of torch are of PyTorch, in that of python of the standard library.
    #[serde(default)]
    pub root: String,
}

/// A file or folder of code that its path does not classify.
///
/// ```
/// use memlab_trace::{decode_line, record::CodeKind, Record};
/// let line = br#"{"code":"program","root":"/home/ada/.venv/lib/python3.11/site-packages/trainer"}"#;
/// let Record::CodeRoot(root) = decode_line(line)? else { panic!() };
/// assert_eq!((root.code, root.root.ends_with("/trainer")), (CodeKind::Program, true));
/// # Ok::<(), memlab_trace::DecodeError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodeRoot {
    /// What the code is.
    pub code: CodeKind,
    /// A file, or a folder with its contents.
    #[serde(default)]
    pub root: String,
}

/// What code a [`CodeRoot`] names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CodeKind {
    /// The program: for example what `python -m` started, though it is installed like a library.
    Program,
    /// Code that a compiler wrote.
    Generated,
    /// A kind of a newer memlab.
    #[default]
    #[serde(other)]
    Unknown,
}

impl CodeKind {
    /// Its name in a trace.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Program => "program",
            Self::Generated => "generated",
            Self::Unknown => "unknown",
        }
    }
}

/// The file of lines of which is only known that they run compiled.
pub const UNKNOWN_COMPILED: &str = "(compiled code, unknown line)";

/// The file of the line that counts what compilers measure kernels with.
pub const BENCHMARKS: &str = "(torch.compile's benchmarks)";

/// A Python frame: one place in one function.
///
/// ```
/// use memlab_trace::{decode_line, Record};
/// let line = br#"{"frame":12,"file":"/home/ada/gpt/train.py","line":31,"function":"GPT.forward"}"#;
/// let Record::Frame(frame) = decode_line(line)? else { panic!() };
/// assert_eq!((frame.frame, frame.line, &*frame.function), (12, Some(31), "GPT.forward"));
/// # Ok::<(), memlab_trace::DecodeError>(())
/// ```
///
/// Code that torch.compile generated names the frames of the program that it stands for, the outermost first; none if they are
/// not known:
///
/// ```
/// use memlab_trace::{decode_line, Record};
/// let line = br#"{"frame":14,"stands_for":[12,13],"file":"/tmp/torchinductor_ada/fi/cfijm6.py","line":603,"function":"call"}"#;
/// let Record::Frame(frame) = decode_line(line)? else { panic!() };
/// assert_eq!(frame.stands_for, Some(vec![12, 13]));
/// # Ok::<(), memlab_trace::DecodeError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frame<'a> {
    /// Its id.
    pub frame: u32,
    /// For compiled code, the frames that it stands for.
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

/// The text of a line of a source file at the time it ran.
///
/// ```
/// use memlab_trace::{decode_line, Record};
/// let line = br#"{"source":"/home/ada/gpt/train.py","line":31,"text":"        x = self.fc(x)"}"#;
/// let Record::Source(source) = decode_line(line)? else { panic!() };
/// assert_eq!((source.line, &*source.text), (31, "        x = self.fc(x)"));
/// # Ok::<(), memlab_trace::DecodeError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source<'a> {
    /// The source file.
    #[serde(borrow)]
    pub source: Text<'a>,
    /// The line, from 1.
    #[serde(default)]
    pub line: u32,
    /// The text; the begin of a long line.
    #[serde(borrow, default)]
    pub text: Text<'a>,
}

/// A stack: a trie node.
///
/// ```
/// use memlab_trace::{decode_line, record::Stack, Record};
/// let record = decode_line(br#"{"stack":5,"parent":4,"frame":12}"#)?;
/// assert_eq!(record, Record::Stack(Stack { stack: 5, parent: 4, frame: 12 }));
/// # Ok::<(), memlab_trace::DecodeError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stack {
    /// Its id.
    pub stack: u32,
    /// The caller's stack; 0: none.
    #[serde(default)]
    pub parent: u32,
    /// The frame on top of it.
    #[serde(default)]
    pub frame: u32,
}

/// A layer: one module as called by another.
///
/// ```
/// use memlab_trace::{decode_line, Record};
/// let Record::Layer(layer) = decode_line(br#"{"layer":7,"parent":3,"type":"Linear","name":"h.0.mlp.fc"}"#)? else { panic!() };
/// assert_eq!((layer.layer, layer.class.as_str(), layer.name.as_deref()), (7, "Linear", Some("h.0.mlp.fc")));
/// let Record::Layer(layer) = decode_line(br#"{"layer":1,"parent":0,"type":"Net","name":"","variable":"GAN.G"}"#)? else { panic!() };
/// assert_eq!(layer.variable.as_deref(), Some("GAN.G"));
/// # Ok::<(), memlab_trace::DecodeError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layer {
    /// Its id.
    pub layer: u32,
    /// The layer whose `forward` called this one; 0: an outermost module.
    #[serde(default)]
    pub parent: u32,
    /// The module's class.
    #[serde(default, rename = "type")]
    pub class: String,
    /// The qualified name in the outermost module, `""` for the module itself; `None`: not known (yet).
    #[serde(default)]
    pub name: Option<String>,
    /// Of an outermost module, the variable or attribute that holds it, if one was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variable: Option<String>,
}

/// A range that the program names: a trie node.
///
/// ```
/// use memlab_trace::{decode_line, Record};
/// let Record::Range(range) = decode_line(br#"{"range":3,"parent":1,"name":"attention"}"#)? else { panic!() };
/// assert_eq!((range.range, range.parent, range.name.as_str()), (3, 1, "attention"));
/// # Ok::<(), memlab_trace::DecodeError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    /// Its id.
    pub range: u32,
    /// The range around it; 0: none.
    #[serde(default)]
    pub parent: u32,
    /// Its name.
    #[serde(default)]
    pub name: String,
}

/// A name of what ran on a GPU.
///
/// ```
/// use memlab_trace::{decode_line, Record};
/// let Record::Kernel(kernel) = decode_line(br#"{"kernel":3,"name":"copy pinned to device"}"#)? else { panic!() };
/// assert_eq!((kernel.kernel, kernel.name.as_str()), (3, "copy pinned to device"));
/// # Ok::<(), memlab_trace::DecodeError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kernel {
    /// Its number.
    pub kernel: u32,
    /// A kernel's mangled name, a kind of copy, or `fill`.
    #[serde(default)]
    pub name: String,
}

/// A part of what PyTorch's allocator was asked for on a device, in order: written when a run is recorded for a plan.
///
/// Each entry is `[kind,address,bytes,stream,pool,pool]`, as [`AllocatorRequest`] gives it. The k-th allocation of all
/// parts together is the k-th [`Alloc`](super::Alloc) of the device, which has the size of its block and where it was
/// allocated.
///
/// ```
/// use memlab_trace::{decode_line, record::{AllocatorRequest, AllocatorRequestKind}, Record};
/// let line = br#"{"requests":0,"asked":[[0,140213447884800,4000,0,0,0],[3,140213447884800,4000,0,0,0]]}"#;
/// let Record::Requests(part) = decode_line(line)? else { panic!() };
/// let requests: Vec<AllocatorRequest> = part.entries().collect();
/// assert_eq!((part.requests, requests[0].kind, requests[0].bytes), (0, AllocatorRequestKind::Allocation, 4000));
/// assert_eq!(requests[1].kind, AllocatorRequestKind::Free);
/// # Ok::<(), memlab_trace::DecodeError>(())
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
    /// The entries that this memlab knows.
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

/// Something that PyTorch's allocator was asked for, or did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocatorRequest {
    /// What.
    pub kind: AllocatorRequestKind,
    /// The address of the block, or of the segment.
    pub address: u64,
    /// Bytes that were asked for, before rounding; bytes of the segment.
    pub bytes: u64,
    /// The stream's handle; 0 is the default stream.
    pub stream: u64,
    /// The private pool of a CUDA graph or `MemPool`; zeros: the common one.
    pub pool: (u64, u64),
}

/// The kind of an [`AllocatorRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocatorRequestKind {
    /// 0: memory for a tensor, which was given.
    Allocation,
    /// 1: the tensor is gone, but other streams may still use its memory.
    FreeRequested,
    /// 2: they have finished.
    FreeCompleted,
    /// 3: the tensor is gone, and its memory can be used again.
    Free,
    /// 4: a segment went back to the driver, or a part of it.
    SegmentFree,
    /// 5: memory for a tensor, which was not given: out of memory.
    OutOfMemory,
    /// 6: another part of the program begins. In place of an address: 0 training, 1 evaluation, 2 saving, 3 the rest, 4 it failed.
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
