//! Layouts of the records, as in cupti_activity.h of CUDA 13.2.

use std::ffi::c_char;

/// `CUpti_ActivityKind`.
pub mod kind {
    pub const MEMCPY: u32 = 1;
    pub const MEMSET: u32 = 2;
    /// Kernels that run one at a time, with the layout of concurrent ones.
    pub const KERNEL: u32 = 3;
    pub const DRIVER: u32 = 4;
    pub const RUNTIME: u32 = 5;
    pub const CONCURRENT_KERNEL: u32 = 10;
    /// Copies between devices.
    pub const MEMCPY2: u32 = 22;
    pub const EXTERNAL_CORRELATION: u32 = 39;
    pub const GRAPH_TRACE: u32 = 51;
}

/// `CUPTI_CHANNEL_TYPE_COMPUTE` and `…_ASYNC_MEMCPY`.
pub const CHANNEL_COMPUTE: u32 = 1;
pub const CHANNEL_COPY: u32 = 2;

/// `CUpti_ActivityKernel11`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Kernel {
    pub kind: u32,
    pub cache: [u8; 2],
    pub registers: u16,
    pub partitioned_cache: [u32; 2],
    pub start: u64,
    pub end: u64,
    pub completed: u64,
    pub device: u32,
    pub context: u32,
    pub stream: u32,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub static_shared: u32,
    pub dynamic_shared: u32,
    pub local: [u32; 2],
    pub correlation: u32,
    pub grid_id: i64,
    pub name: *const c_char,
    pub reserved: usize,
    pub queued: u64,
    pub submitted: u64,
    pub launch: [u8; 4],
    pub shared_executed: u32,
    pub graph_node: u64,
    pub shared_limit: u32,
    pub graph: u32,
    pub access_policy: usize,
    pub channel: u32,
    pub channel_type: u32,
    pub cluster: [u32; 4],
    pub local_total: u64,
    pub clusters: [u32; 2],
    pub device_launched: u64,
    pub priority: [u32; 2],
}

/// `CUpti_ActivityMemcpy6`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Copy {
    pub kind: u32,
    pub copy_kind: u8,
    pub from: u8,
    pub to: u8,
    pub flags: u8,
    pub bytes: u64,
    pub start: u64,
    pub end: u64,
    pub device: u32,
    pub context: u32,
    pub stream: u32,
    pub correlation: u32,
    pub runtime_correlation: [u32; 2],
    pub reserved: usize,
    pub graph_node: u64,
    pub graph: u32,
    pub channel: u32,
    pub channel_type: u32,
    pub device_launched: u32,
    pub copies: u64,
}

/// `CUpti_ActivityMemcpyPtoP4`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PeerCopy {
    pub kind: u32,
    pub copy_kind: u8,
    pub from: u8,
    pub to: u8,
    pub flags: u8,
    pub bytes: u64,
    pub start: u64,
    pub end: u64,
    pub device: u32,
    pub context: u32,
    pub stream: u32,
    pub from_device: u32,
    pub from_context: u32,
    pub to_device: u32,
    pub to_context: u32,
    pub correlation: u32,
    pub reserved: usize,
    pub graph_node: u64,
    pub graph: u32,
    pub channel: u32,
    pub channel_type: [u32; 2],
}

/// `CUpti_ActivityMemset4`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Fill {
    pub kind: u32,
    pub value: u32,
    pub bytes: u64,
    pub start: u64,
    pub end: u64,
    pub device: u32,
    pub context: u32,
    pub stream: u32,
    pub correlation: u32,
    pub flags: u16,
    pub memory: u16,
    pub pad: u32,
    pub reserved: usize,
    pub graph_node: u64,
    pub graph: u32,
    pub channel: u32,
    pub channel_type: u32,
    pub device_launched: u32,
}

/// `CUpti_ActivityAPI`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Api {
    pub kind: u32,
    pub callback: u32,
    pub start: u64,
    pub end: u64,
    pub process: u32,
    pub thread: u32,
    pub correlation: u32,
    pub status: i32,
}

/// `CUpti_ActivityExternalCorrelation`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct External {
    pub kind: u32,
    pub external_kind: u32,
    pub id: u64,
    pub correlation: u32,
    pub reserved: u32,
}

/// `CUpti_ActivityGraphTrace2`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct GraphTrace {
    pub kind: u32,
    pub correlation: u32,
    pub start: u64,
    pub end: u64,
    pub device: u32,
    pub graph: u32,
    pub context: u32,
    pub stream: u32,
    pub reserved: usize,
    pub end_device: u32,
    pub end_context: u32,
}

const _: () = {
    assert!(size_of::<Kernel>() == 224 && size_of::<Copy>() == 96 && size_of::<PeerCopy>() == 96);
    assert!(size_of::<Fill>() == 88 && size_of::<Api>() == 40 && size_of::<External>() == 24);
    assert!(size_of::<GraphTrace>() == 56);
    assert!(std::mem::offset_of!(Kernel, correlation) == 92 && std::mem::offset_of!(Kernel, name) == 104);
    assert!(std::mem::offset_of!(Kernel, graph_node) == 144 && std::mem::offset_of!(Kernel, graph) == 156);
    assert!(std::mem::offset_of!(Copy, graph) == 72 && std::mem::offset_of!(PeerCopy, correlation) == 60);
};

/// A record.
#[derive(Clone, Copy)]
pub enum Record {
    Kernel(Kernel),
    Copy(Copy),
    PeerCopy(PeerCopy),
    Fill(Fill),
    Api(Api),
    External(External),
    GraphTrace(GraphTrace),
}

impl Record {
    /// Returns its address and length: a multiple of 8, beginning with the kind.
    pub fn bytes(&self) -> (*const u8, usize) {
        fn of<T>(record: &T) -> (*const u8, usize) {
            (std::ptr::from_ref(record).cast(), size_of::<T>())
        }
        match self {
            Record::Kernel(record) => of(record),
            Record::Copy(record) => of(record),
            Record::PeerCopy(record) => of(record),
            Record::Fill(record) => of(record),
            Record::Api(record) => of(record),
            Record::External(record) => of(record),
            Record::GraphTrace(record) => of(record),
        }
    }
}

/// Returns the length of a record of a kind.
pub fn length(of_kind: u32) -> Option<usize> {
    Some(match of_kind {
        kind::KERNEL | kind::CONCURRENT_KERNEL => size_of::<Kernel>(),
        kind::MEMCPY => size_of::<Copy>(),
        kind::MEMCPY2 => size_of::<PeerCopy>(),
        kind::MEMSET => size_of::<Fill>(),
        kind::DRIVER | kind::RUNTIME => size_of::<Api>(),
        kind::EXTERNAL_CORRELATION => size_of::<External>(),
        kind::GRAPH_TRACE => size_of::<GraphTrace>(),
        _ => return None,
    })
}
