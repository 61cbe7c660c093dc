//! Encoder of events.

use super::buffer::{LineBuffer, MAX_NUMBER_BYTES};
use crate::record::{DriverKind, GraphCaptured, GraphGone, Ran, Step, StepWait, StepWork, TagCategory, Work};

/// `["a",…]`: PyTorch's allocator handed out a block; `flags` as in [`crate::record::Flags`].
#[expect(clippy::too_many_arguments, reason = "one per element of the record, in its order")]
#[inline]
pub fn alloc<const N: usize>(
    buffer: &mut LineBuffer<N>,
    time: u64,
    thread: u32,
    device: i32,
    address: u64,
    bytes: u64,
    stack: u32,
    layer: u32,
    flags: u32,
) -> &[u8] {
    let mut line = buffer.line();
    line.raw(b"[\"a\",").number(time).field(thread).field(device).field(address).field(bytes);
    line.field(stack).field(layer).field(flags).finish(b"]");
    line.into_bytes()
}

/// `["f",…]`: the block at `address` returned to PyTorch's allocator.
#[inline]
pub fn free<const N: usize>(buffer: &mut LineBuffer<N>, time: u64, thread: u32, device: i32, address: u64) -> &[u8] {
    let mut line = buffer.line();
    line.raw(b"[\"f\",").number(time).field(thread).field(device).field(address).finish(b"]");
    line.into_bytes()
}

/// Fields of a `"d+"` line: memory taken from the driver.
#[derive(Clone, Copy, Debug)]
pub struct DriverAlloc<'a> {
    /// Nanoseconds since the trace's start.
    pub time: u64,
    /// Calling thread.
    pub thread: u32,
    /// The device; -1 for host memory.
    pub device: i32,
    /// The pointer, or the handle for arrays and physical memory.
    pub address: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// The kind of memory.
    pub kind: DriverKind,
    /// The outermost CUDA function in the call.
    pub call: &'a [u8],
    /// The file that called the function.
    pub library: &'a [u8],
    /// The Python stack.
    pub stack: u32,
    /// The layer.
    pub layer: u32,
    /// Flags, as in [`crate::record::Flags`].
    pub flags: u32,
    /// Capture of the CUDA graph whose pool received the memory; 0: none.
    pub graph: u64,
    /// PyTorch's number of the stream that received the memory; 0: the default stream.
    pub stream: u64,
}

/// `["d+",…]`: the process took memory from the driver.
pub fn driver_alloc<'b, const N: usize>(buffer: &'b mut LineBuffer<N>, event: &DriverAlloc<'_>) -> &'b [u8] {
    const TAIL: usize = 5 * (MAX_NUMBER_BYTES + 1) + 4;
    let mut line = buffer.line();
    line.raw(b"[\"d+\",").number(event.time).field(event.thread).field(event.device);
    line.field(event.address).field(event.bytes);
    line.raw(b",\"").raw(event.kind.as_str().as_bytes()).raw(b"\",");
    let half = line.room().saturating_sub(TAIL) / 2;
    line.string(event.call, half + TAIL).raw(b",").string(event.library, TAIL);
    line.field(event.stack).field(event.layer).field(event.flags);
    if (event.graph, event.stream) != (0, 0) {
        line.field(event.graph).field(event.stream);
    }
    line.finish(b"]");
    line.into_bytes()
}

/// `["g+",…]`: a CUDA graph was captured, with memory of the private pool `pool`.
pub fn graph_captured<'b, const N: usize>(buffer: &'b mut LineBuffer<N>, event: &GraphCaptured) -> &'b [u8] {
    let mut line = buffer.line();
    line.raw(b"[\"g+\",").number(event.time).field(event.thread).field(event.device).field(event.graph);
    line.field(event.pool.0).field(event.pool.1).field(event.stack).finish(b"]");
    line.into_bytes()
}

/// `["g-",…]`: the program released a CUDA graph.
pub fn graph_gone<'b, const N: usize>(buffer: &'b mut LineBuffer<N>, event: &GraphGone) -> &'b [u8] {
    let mut line = buffer.line();
    line.raw(b"[\"g-\",").number(event.time).field(event.thread).field(event.device).field(event.graph).finish(b"]");
    line.into_bytes()
}

/// `["d-",…]`: driver memory was freed.
pub fn driver_free<const N: usize>(
    buffer: &mut LineBuffer<N>,
    time: u64,
    thread: u32,
    device: i32,
    address: u64,
    kind: DriverKind,
) -> &[u8] {
    let mut line = buffer.line();
    line.raw(b"[\"d-\",").number(time).field(thread).field(device).field(address);
    line.raw(b",\"").raw(kind.as_str().as_bytes()).finish(b"\"]");
    line.into_bytes()
}

/// `["map",…]`: physical memory `handle` appears at a virtual address.
pub fn map<const N: usize>(
    buffer: &mut LineBuffer<N>,
    time: u64,
    thread: u32,
    device: i32,
    address: u64,
    bytes: u64,
    handle: u64,
) -> &[u8] {
    let mut line = buffer.line();
    line.raw(b"[\"map\",").number(time).field(thread).field(device).field(address).field(bytes);
    line.field(handle).finish(b"]");
    line.into_bytes()
}

/// `["unmap",…]`: physical memory disappears from a virtual address.
pub fn unmap<const N: usize>(
    buffer: &mut LineBuffer<N>,
    time: u64,
    thread: u32,
    device: i32,
    address: u64,
    bytes: u64,
) -> &[u8] {
    let mut line = buffer.line();
    line.raw(b"[\"unmap\",").number(time).field(thread).field(device).field(address).field(bytes).finish(b"]");
    line.into_bytes()
}

/// `["oom",…]`: PyTorch is about to raise OutOfMemoryError; the totals are PyTorch's own.
#[expect(clippy::too_many_arguments, reason = "one per element of the record, in its order")]
pub fn oom<const N: usize>(
    buffer: &mut LineBuffer<N>,
    time: u64,
    thread: u32,
    device: i32,
    requested: u64,
    allocated: u64,
    reserved: u64,
    stack: u32,
    layer: u32,
) -> &[u8] {
    let mut line = buffer.line();
    line.raw(b"[\"oom\",").number(time).field(thread).field(device).field(requested).field(allocated);
    line.field(reserved).field(stack).field(layer).finish(b"]");
    line.into_bytes()
}

/// `["tag",…]`: category and name of the tensor at `address`.
///
/// `root` is the layer id of its outermost module (0: none). `shard` is its sharding (empty: not sharded).
#[expect(clippy::too_many_arguments, reason = "one per element of the record, in its order")]
pub fn tag<'b, const N: usize>(
    buffer: &'b mut LineBuffer<N>,
    time: u64,
    device: i32,
    address: u64,
    category: TagCategory,
    bytes: u64,
    root: u32,
    name: impl AsRef<[u8]>,
    shard: &[u8],
) -> &'b [u8] {
    const SHARD: usize = 256;
    let mut line = buffer.line();
    line.raw(b"[\"tag\",").number(time).field(device).field(address);
    line.raw(b",\"").raw(category.as_str().as_bytes()).raw(b"\"").field(bytes).field(root);
    line.raw(b",").string(name.as_ref(), if shard.is_empty() { 4 } else { SHARD });
    if !shard.is_empty() {
        line.raw(b",").string(shard, 4);
    }
    line.finish(b"]");
    line.into_bytes()
}

/// `["step",…]`: optimizer step `index` (from 0) ended.
pub fn step<'b, const N: usize>(buffer: &'b mut LineBuffer<N>, step: &Step) -> &'b [u8] {
    let mut line = buffer.line();
    let end: &[u8] = if step.is_untimed { b",1]" } else { b"]" };
    line.raw(b"[\"step\",").number(step.time).field(step.thread).field(step.index).finish(end);
    line.into_bytes()
}

/// `["read",…]`: the program copied `bytes` of device memory to the host.
pub fn read_back<const N: usize>(buffer: &mut LineBuffer<N>, time: u64, thread: u32, bytes: u64, stack: u32) -> &[u8] {
    let mut line = buffer.line();
    line.raw(b"[\"read\",").number(time).field(thread).field(bytes).field(stack).finish(b"]");
    line.into_bytes()
}

/// `["work",…]`: work of a GPU, by place and kernel.
pub fn work<'b, const N: usize>(buffer: &'b mut LineBuffer<N>, work: &Work) -> &'b [u8] {
    let mut line = buffer.line();
    line.raw(b"[\"work\",")
        .number(work.time)
        .field(work.device)
        .field(work.stack)
        .field(work.layer)
        .field(work.flags.0);
    line.field(work.kernel).field(work.calls).field(work.nanoseconds).field(work.bytes).finish(b"]");
    line.into_bytes()
}

/// `["step_work",…]`: work of a GPU, by the launching step.
pub fn step_work<'b, const N: usize>(buffer: &'b mut LineBuffer<N>, work: &StepWork) -> &'b [u8] {
    let mut line = buffer.line();
    line.raw(b"[\"step_work\",").number(work.time).field(work.device).field(work.step).field(work.steps);
    line.field(work.calls).field(work.nanoseconds).field(work.to_device_bytes).field(work.to_host_bytes).finish(b"]");
    line.into_bytes()
}

/// `["step_wait",…]`: time in which the program gave the GPU no work in a step.
pub fn step_wait<'b, const N: usize>(buffer: &'b mut LineBuffer<N>, wait: &StepWait) -> &'b [u8] {
    let mut line = buffer.line();
    line.raw(b"[\"step_wait\",").number(wait.time).field(wait.step).field(wait.data_ns);
    line.raw(b",").optional(wait.launch_ns).finish(b"]");
    line.into_bytes()
}

/// `["busy",…]`: time that a GPU was busy, waited for the host, or idled otherwise, since the last such line.
pub fn busy<const N: usize>(
    buffer: &mut LineBuffer<N>,
    time: u64,
    device: i32,
    busy: u64,
    waiting: u64,
    idle: u64,
) -> &[u8] {
    let mut line = buffer.line();
    line.raw(b"[\"busy\",").number(time).field(device).field(busy).field(waiting).field(idle).finish(b"]");
    line.into_bytes()
}

/// `["ran",…]`: one kernel, copy or fill of the timeline.
pub fn ran<'b, const N: usize>(buffer: &'b mut LineBuffer<N>, ran: &Ran) -> &'b [u8] {
    let mut line = buffer.line();
    line.raw(b"[\"ran\",").number(ran.time).field(ran.device).field(ran.stream).field(ran.start).field(ran.nanoseconds);
    line.field(ran.stack).field(ran.layer).field(ran.flags.0).field(ran.kernel).field(ran.bytes).finish(b"]");
    line.into_bytes()
}

/// `["range",…]`: `range` is the innermost range of the thread from now on (0: none).
pub fn in_range<const N: usize>(buffer: &mut LineBuffer<N>, time: u64, thread: u32, range: u32) -> &[u8] {
    let mut line = buffer.line();
    line.raw(b"[\"range\",").number(time).field(thread).field(range).finish(b"]");
    line.into_bytes()
}

/// `["used",…]`: memory use of the whole device and of this process, as the driver reports it.
pub fn used<const N: usize>(
    buffer: &mut LineBuffer<N>,
    time: u64,
    device: i32,
    used: u64,
    total: u64,
    process: Option<u64>,
) -> &[u8] {
    let mut line = buffer.line();
    line.raw(b"[\"used\",").number(time).field(device).field(used).field(total);
    line.raw(b",").optional(process).finish(b"]");
    line.into_bytes()
}

/// `["moved",…]`: `bytes` of the device's memory are in host memory from now on.
pub fn moved<const N: usize>(buffer: &mut LineBuffer<N>, time: u64, device: i32, bytes: u64) -> &[u8] {
    let mut line = buffer.line();
    line.raw(b"[\"moved\",").number(time).field(device).field(bytes).finish(b"]");
    line.into_bytes()
}

/// `["lost",…]`: number of events missing before this line.
pub fn lost<const N: usize>(buffer: &mut LineBuffer<N>, time: u64, events: u64) -> &[u8] {
    let mut line = buffer.line();
    line.raw(b"[\"lost\",").number(time).field(events).finish(b"]");
    line.into_bytes()
}

/// `["end",…]`: the process ended with this exit code or signal.
pub fn end<const N: usize>(buffer: &mut LineBuffer<N>, time: u64, code: Option<i32>, signal: Option<i32>) -> &[u8] {
    let mut line = buffer.line();
    line.raw(b"[\"end\",").number(time).raw(b",").optional(code).raw(b",").optional(signal).finish(b"]");
    line.into_bytes()
}
