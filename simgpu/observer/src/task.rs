//! Work of the device.

use std::ffi::{CStr, c_char};

/// `dim3`: x, y, z.
pub type Dimensions = [u32; 3];

/// Location of memory, with the numbers of `CUpti_ActivityMemoryKind`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    Pageable = 1,
    Pinned = 2,
    Device = 3,
    Array = 4,
    Managed = 5,
}

/// Kind of arithmetic, by the units of a multiprocessor that compute it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unit {
    /// float32, outside of tensor cores.
    #[default]
    Single,
    Double,
    /// float32 rounded to TF32, in tensor cores.
    TensorSingle,
    /// float16 and bfloat16, in tensor cores.
    TensorHalf,
    /// Types of one byte, in tensor cores.
    TensorByte,
}

/// Number of units.
pub const UNITS: usize = 5;

/// The code of the simulated libraries' kernels. Their only parameter is an [`Arithmetic`].
pub const SIMULATED_CODE: &CStr = c"simgpu";

/// Arithmetic and memory traffic of a kernel of a simulated library. Nothing is known of other kernels, whose code is not read.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arithmetic {
    /// Additions and multiplications.
    pub operations: u64,
    /// Bytes read and written.
    pub bytes: u64,
    pub unit: Unit,
}

/// A piece of work for the device.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Task {
    Kernel {
        /// Mangled name in the module; NUL-terminated, valid while the module is loaded.
        name: *const c_char,
        grid: Dimensions,
        block: Dimensions,
        /// Dynamic shared memory per block.
        shared: u32,
        /// Registers per thread.
        registers: u32,
        arithmetic: Arithmetic,
    },
    Copy {
        from: MemoryKind,
        to: MemoryKind,
        /// Devices of the two sides, if they are device memory.
        devices: [u32; 2],
        bytes: u64,
        is_async: bool,
    },
    Fill {
        bytes: u64,
        /// Value of one element.
        value: u32,
        is_async: bool,
    },
}

// SAFETY: the name is only an address; who follows it knows how long it is valid.
unsafe impl Send for Task {}

/// A node of a launched graph, by their handles.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GraphNode {
    /// Executable graph.
    pub graph: usize,
    pub node: usize,
}

/// Speed of a card, per second, at its highest clocks.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speeds {
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes on the link to the host.
    pub link: u64,
    /// Operations, by [`Unit`].
    pub arithmetic: [u64; UNITS],
}

/// Work that a call has submitted to a stream.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Submitted {
    pub task: Task,
    pub device: u32,
    /// Handle of the context.
    pub context: usize,
    /// Handle of the stream.
    pub stream: usize,
    /// Graph node; both handles are null outside a graph.
    pub node: GraphNode,
    pub speeds: Speeds,
}
