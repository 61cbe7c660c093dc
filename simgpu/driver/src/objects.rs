//! Objects behind handles.

use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString};
use std::time::Instant;

use simgpu_observer::Task;

use crate::space::Block;

/// A context, primary or not.
pub struct Context {
    pub device: usize,
    pub flags: u32,
    pub id: u64,
    pub primary: bool,
    pub limits: [u64; 8],
    /// Bytes charged to the card.
    pub charged: u64,
}

/// A device's primary context.
#[derive(Default)]
pub struct PrimaryContext {
    /// 0 while it is not active.
    pub handle: usize,
    pub retained: u32,
    pub flags: u32,
}

/// A stream other than the default ones.
pub struct Stream {
    pub context: usize,
    pub flags: u32,
    pub priority: i32,
}

/// An event.
pub struct Event {
    pub context: usize,
    pub flags: u32,
    pub recorded: Option<Instant>,
    /// Capture and stream of its last record, if that was in a capture.
    pub captured: Option<(usize, usize)>,
}

/// A pool of device memory.
pub struct Pool {
    pub device: usize,
    pub is_default: bool,
    /// Freed blocks that are still charged to the card.
    pub cached: Vec<Block>,
    pub used: u64,
    pub used_high: u64,
    pub reserved: u64,
    pub reserved_high: u64,
    pub threshold: u64,
    pub max_size: u64,
    pub handle_types: i32,
    pub reuse: [i32; 3],
    pub destroyed: bool,
    pub current: bool,
}

impl Pool {
    /// Returns a pool of a device, without memory.
    pub fn new(device: usize, is_default: bool, max_size: u64, handle_types: i32) -> Self {
        Self {
            device,
            is_default,
            cached: Vec::new(),
            used: 0,
            used_high: 0,
            reserved: 0,
            reserved_high: 0,
            threshold: 0,
            max_size,
            handle_types,
            reuse: [1; 3],
            destroyed: false,
            current: is_default,
        }
    }
}

/// Kind of a node (`CUgraphNodeType` in cuda.h).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Work(pub i32);

impl Work {
    pub const KERNEL: Work = Work(0);
    pub const MEMCPY: Work = Work(1);
    pub const MEMSET: Work = Work(2);
    pub const HOST: Work = Work(3);
    pub const GRAPH: Work = Work(4);
    pub const EMPTY: Work = Work(5);
    pub const EVENT_WAIT: Work = Work(6);
    pub const EVENT_RECORD: Work = Work(7);
    pub const MEMORY_ALLOCATION: Work = Work(10);
    pub const MEMORY_FREE: Work = Work(11);
    pub const MEMORY_OPERATION: Work = Work(12);
}

/// A capture in progress.
pub struct Capture {
    pub graph: usize,
    pub mode: i32,
    pub thread: u64,
    pub origin: usize,
    pub invalid: bool,
    /// Other streams in the capture; true while one has work that the origin does not wait for.
    pub forked: HashMap<usize, bool>,
    /// Nodes on which the next node will depend; `cuStreamGetCaptureInfo` returns a pointer to them.
    pub last: Vec<usize>,
}

/// References held by a graph: object and count.
pub type References = Vec<(usize, u32)>;

/// A graph.
#[derive(Default)]
pub struct Graph {
    pub nodes: Vec<usize>,
    pub objects: References,
}

/// A node of a graph.
pub struct Node {
    pub graph: usize,
    pub work: Work,
    pub dependencies: Vec<usize>,
    /// Work of a launch on the device, for nodes that a capture made.
    pub task: Option<Task>,
    /// Address that a memory node allocates or frees.
    pub memory: u64,
}

/// A graph ready to launch: the operations of its memory nodes, and the work of its nodes on the device, in order.
pub struct Executable {
    pub flags: u64,
    pub tasks: Vec<(usize, Task)>,
    pub memory: Vec<(Work, u64)>,
    pub objects: References,
}

/// A device's memory for graphs.
#[derive(Default)]
pub struct GraphMemory {
    pub live: HashSet<u64>,
    pub used: u64,
    pub used_high: u64,
    /// Bytes charged to the card.
    pub reserved: u64,
    pub reserved_high: u64,
}

/// `CUDA_ARRAY3D_DESCRIPTOR` (40 bytes).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Shape {
    pub width: u64,
    pub height: u64,
    pub depth: u64,
    pub format: u32,
    pub channels: u32,
    pub flags: u32,
}

/// An array and the memory behind it.
pub struct Array {
    pub shape: Shape,
    pub base: u64,
}

/// A module or library.
#[derive(Default)]
pub struct Library {
    pub functions: HashMap<CString, usize>,
    /// Variables, per device, created at the first request.
    pub globals: HashMap<(CString, usize), u64>,
    /// True for the kernels of the simulated libraries, which have no code.
    pub is_simulated: bool,
}

/// A function or kernel.
pub struct Function {
    pub library: usize,
    /// Never freed: nodes of graphs name it, and they can outlive the module.
    pub name: &'static CStr,
    pub attributes: [i32; 16],
    /// True if its only parameter is an [`Arithmetic`](simgpu_observer::Arithmetic).
    pub is_simulated: bool,
}

/// `CUmemLocation`: 1 a device, 2 the host, 3 a NUMA node, 4 the current one.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Location {
    pub kind: i32,
    pub id: i32,
}

/// `CUmemAllocationProp` (32 bytes).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Properties {
    pub kind: i32,
    pub handle_types: i32,
    pub location: Location,
    pub win32: usize,
    pub flags: u64,
}

/// Physical memory.
pub struct Physical {
    pub size: u64,
    pub properties: Properties,
    pub file: i32,
    /// Charged device, if it is device memory that this process created.
    pub charged: Option<usize>,
    /// Number of handles not yet released; mappings keep the memory alive after that.
    pub references: u32,
    pub mappings: u32,
}

/// All physical memory, by handle.
#[derive(Default)]
pub struct Virtual {
    pub physical: HashMap<usize, Physical>,
}
