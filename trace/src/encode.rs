//! The encoder: one function per record, each writing one line into a buffer on the stack.
//!
//! Made for the hooks inside a traced process: nothing here allocates, panics, locks or calls out. Every
//! function returns the finished line, newline included; a string too long for the buffer is cut and ends in
//! `…`, so that the line is always valid JSON. An empty slice means that the buffer cannot hold even that.
//! Text is given as bytes and need not be UTF-8: what is not becomes U+FFFD.

mod buffer;

pub use buffer::LineBuffer;

use crate::record::{CodeKind, DriverKind, FORMAT, TagCategory};

/// The most digits (and sign) an integer takes.
const NUMBER: usize = 20;

/// What the header line says of the traced process.
#[derive(Clone, Copy, Debug)]
pub struct Header<'a> {
    /// The version of memlab that writes.
    pub version: &'a str,
    /// A random identity of this trace.
    pub id: &'a str,
    /// The process.
    pub pid: u32,
    /// Its parent.
    pub parent_pid: u32,
    /// The moment from which the trace counts its times: nanoseconds since 1970.
    pub start_unix_ns: u64,
    /// The command line as `/proc/self/cmdline` has it: each argument ends in a NUL.
    pub command: &'a [u8],
    /// The working directory.
    pub directory: &'a [u8],
    /// The machine's name.
    pub host: &'a [u8],
    /// `RANK`, if a launcher set it.
    pub rank: Option<u32>,
    /// `LOCAL_RANK`, if a launcher set it.
    pub local_rank: Option<u32>,
    /// `WORLD_SIZE`, if a launcher set it.
    pub world_size: Option<u32>,
}

/// The first line of a trace. Arguments that do not fit are left out, the last one standing ends in `…`.
pub fn header<'b, const N: usize>(buffer: &'b mut LineBuffer<N>, header: &Header<'_>) -> &'b [u8] {
    // What follows the command: two strings of at most 1024 and 256 bytes, and the ranks.
    const AFTER_COMMAND: usize = 1024 + 256 + 128;
    const RANKS: usize = 96;
    let mut line = buffer.line();
    line.raw(b"{\"memlab\":").number(FORMAT);
    line.raw(b",\"version\":").string(header.version.as_bytes(), AFTER_COMMAND);
    line.raw(b",\"id\":").string(header.id.as_bytes(), AFTER_COMMAND);
    line.raw(b",\"pid\":").number(header.pid);
    line.raw(b",\"parent_pid\":").number(header.parent_pid);
    line.raw(b",\"start_unix_ns\":").number(header.start_unix_ns);
    line.raw(b",\"command\":[");
    let command = header.command.strip_suffix(b"\0").unwrap_or(header.command);
    if !header.command.is_empty() {
        for (index, argument) in command.split(|byte| *byte == 0).enumerate() {
            if line.room() < AFTER_COMMAND + 8 {
                break;
            }
            line.raw(if index == 0 { b"" } else { b"," }).string(argument, AFTER_COMMAND);
        }
    }
    line.raw(b"],\"directory\":").string(header.directory, 256 + 128);
    line.raw(b",\"host\":").string(header.host, RANKS);
    line.raw(b",\"rank\":").optional(header.rank);
    line.raw(b",\"local_rank\":").optional(header.local_rank);
    line.raw(b",\"world_size\":").optional(header.world_size).finish(b"}");
    line.into_bytes()
}

/// A device: its ordinal, name, memory in bytes, and PCI bus id.
pub fn device<'b, const N: usize>(
    buffer: &'b mut LineBuffer<N>,
    device: i32,
    name: impl AsRef<[u8]>,
    total_bytes: u64,
    bus_id: Option<&[u8]>,
) -> &'b [u8] {
    let mut line = buffer.line();
    line.raw(b"{\"device\":").number(device);
    line.raw(b",\"name\":").string(name.as_ref(), 96);
    line.raw(b",\"total_bytes\":").number(total_bytes);
    line.raw(b",\"bus_id\":").optional_string(bus_id, 4).finish(b"}");
    line.into_bytes()
}

/// The process's limit on a device (`None`: there is none), and what happens beyond it: `oom` or `spill`.
pub fn limit<'b, const N: usize>(
    buffer: &'b mut LineBuffer<N>,
    device: i32,
    bytes: Option<u64>,
    on_limit: &str,
) -> &'b [u8] {
    let mut line = buffer.line();
    line.raw(b"{\"limit\":").number(device);
    line.raw(b",\"bytes\":").optional(bytes);
    line.raw(b",\"on_limit\":").string(on_limit.as_bytes(), 4).finish(b"}");
    line.into_bytes()
}

/// Other processes on a device and the bytes of each: as many of the first as the buffer has room for.
pub fn others<'b, const N: usize>(buffer: &'b mut LineBuffer<N>, device: i32, processes: &[(u32, u64)]) -> &'b [u8] {
    const ENTRY: usize = 2 * (NUMBER + 1) + 3;
    let mut line = buffer.line();
    line.raw(b"{\"others\":").number(device).raw(b",\"processes\":[");
    for (index, (pid, bytes)) in processes.iter().enumerate() {
        if line.room() < ENTRY + 4 {
            break;
        }
        line.raw(if index == 0 { b"[".as_slice() } else { b",[".as_slice() });
        line.number(*pid).field(*bytes).raw(b"]");
    }
    line.finish(b"]}");
    line.into_bytes()
}

/// A thread: its id in events, the system's id of it, and its name.
pub fn thread<const N: usize>(buffer: &mut LineBuffer<N>, thread: u32, tid: u32, name: impl AsRef<[u8]>) -> &[u8] {
    let mut line = buffer.line();
    line.raw(b"{\"thread\":").number(thread);
    line.raw(b",\"tid\":").number(tid);
    line.raw(b",\"name\":").string(name.as_ref(), 4).finish(b"}");
    line.into_bytes()
}

/// Software found in the process and the folder it lives in.
pub fn software<const N: usize>(
    buffer: &mut LineBuffer<N>,
    software: impl AsRef<[u8]>,
    version: impl AsRef<[u8]>,
    root: impl AsRef<[u8]>,
) -> &[u8] {
    let mut line = buffer.line();
    line.raw(b"{\"software\":").string(software.as_ref(), N / 2);
    line.raw(b",\"version\":").string(version.as_ref(), N / 3);
    line.raw(b",\"root\":").string(root.as_ref(), 4).finish(b"}");
    line.into_bytes()
}

/// Where code lies, a file or a folder, and what it is.
pub fn code_root<const N: usize>(buffer: &mut LineBuffer<N>, code: CodeKind, root: impl AsRef<[u8]>) -> &[u8] {
    let mut line = buffer.line();
    line.raw(b"{\"code\":\"").raw(code.as_str().as_bytes());
    line.raw(b"\",\"root\":").string(root.as_ref(), 4).finish(b"}");
    line.into_bytes()
}

/// A Python frame: one place in one function; `line` is `None` where the code object has none.
pub fn frame<const N: usize>(
    buffer: &mut LineBuffer<N>,
    frame: u32,
    file: impl AsRef<[u8]>,
    line: Option<u32>,
    function: impl AsRef<[u8]>,
) -> &[u8] {
    let mut out = buffer.line();
    out.raw(b"{\"frame\":").number(frame);
    out.raw(b",\"file\":").string(file.as_ref(), (N / 3).max(48));
    out.raw(b",\"line\":").optional(line);
    out.raw(b",\"function\":").string(function.as_ref(), 4).finish(b"}");
    out.into_bytes()
}

/// The text of a line of a source file.
pub fn source<const N: usize>(
    buffer: &mut LineBuffer<N>,
    file: impl AsRef<[u8]>,
    line: u32,
    text: impl AsRef<[u8]>,
) -> &[u8] {
    let mut out = buffer.line();
    out.raw(b"{\"source\":").string(file.as_ref(), (N / 3).max(48));
    out.raw(b",\"line\":").number(line);
    out.raw(b",\"text\":").string(text.as_ref(), 4).finish(b"}");
    out.into_bytes()
}

/// A stack: the caller's stack (0: none) and the frame on top of it.
pub fn stack<const N: usize>(buffer: &mut LineBuffer<N>, stack: u32, parent: u32, frame: u32) -> &[u8] {
    let mut line = buffer.line();
    line.raw(b"{\"stack\":").number(stack);
    line.raw(b",\"parent\":").number(parent);
    line.raw(b",\"frame\":").number(frame).finish(b"}");
    line.into_bytes()
}

/// A layer: the layer that called it (0: an outermost module), its class, its qualified name once known, and the variable
/// that holds an outermost module.
pub fn layer<'b, const N: usize>(
    buffer: &'b mut LineBuffer<N>,
    layer: u32,
    parent: u32,
    class: impl AsRef<[u8]>,
    name: Option<&[u8]>,
    variable: Option<&[u8]>,
) -> &'b [u8] {
    let mut line = buffer.line();
    line.raw(b"{\"layer\":").number(layer);
    line.raw(b",\"parent\":").number(parent);
    line.raw(b",\"type\":").string(class.as_ref(), N / 2);
    if variable.is_some() {
        line.raw(b",\"variable\":").optional_string(variable, N / 4);
    }
    line.raw(b",\"name\":").optional_string(name, 4).finish(b"}");
    line.into_bytes()
}

/// Something memlab could not do in this process, in words for the user.
pub fn warning<const N: usize>(buffer: &mut LineBuffer<N>, warning: impl AsRef<[u8]>) -> &[u8] {
    let mut line = buffer.line();
    line.raw(b"{\"warning\":").string(warning.as_ref(), 4).finish(b"}");
    line.into_bytes()
}

/// Says that nothing follows up to byte `skip` of the trace, which lies beyond this line.
pub fn skip<const N: usize>(buffer: &mut LineBuffer<N>, skip: u64) -> &[u8] {
    let mut line = buffer.line();
    line.raw(b"{\"skip\":").number(skip).finish(b"}");
    line.into_bytes()
}

/// `["a",…]`: the caching allocator handed out a block; `flags` as in [`crate::record::Flags`].
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

/// `["f",…]`: the block at `address` was given back to the caching allocator.
#[inline]
pub fn free<const N: usize>(buffer: &mut LineBuffer<N>, time: u64, thread: u32, device: i32, address: u64) -> &[u8] {
    let mut line = buffer.line();
    line.raw(b"[\"f\",").number(time).field(thread).field(device).field(address).finish(b"]");
    line.into_bytes()
}

/// What a `"d+"` line says: memory taken from the driver.
#[derive(Clone, Copy, Debug)]
pub struct DriverAlloc<'a> {
    /// Nanoseconds since the trace's start.
    pub time: u64,
    /// The thread that called.
    pub thread: u32,
    /// The device; -1 for host memory.
    pub device: i32,
    /// The pointer, or the handle for arrays and physical memory.
    pub address: u64,
    /// The size.
    pub bytes: u64,
    /// The kind of memory.
    pub kind: DriverKind,
    /// The outermost CUDA function called.
    pub call: &'a [u8],
    /// The file that called it.
    pub library: &'a [u8],
    /// The Python stack.
    pub stack: u32,
    /// The layer.
    pub layer: u32,
    /// As in [`crate::record::Flags`].
    pub flags: u32,
}

/// `["d+",…]`: memory taken from the driver.
pub fn driver_alloc<'b, const N: usize>(buffer: &'b mut LineBuffer<N>, event: &DriverAlloc<'_>) -> &'b [u8] {
    const TAIL: usize = 3 * (NUMBER + 1) + 4;
    let mut line = buffer.line();
    line.raw(b"[\"d+\",").number(event.time).field(event.thread).field(event.device);
    line.field(event.address).field(event.bytes);
    line.raw(b",\"").raw(event.kind.as_str().as_bytes()).raw(b"\",");
    let half = line.room().saturating_sub(TAIL) / 2;
    line.string(event.call, half + TAIL).raw(b",").string(event.library, TAIL);
    line.field(event.stack).field(event.layer).field(event.flags).finish(b"]");
    line.into_bytes()
}

/// `["d-",…]`: that memory went back to the driver.
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

/// `["tag",…]`: what the tensor at `address` is; `root` is the layer id of its outermost module (0: none).
#[expect(clippy::too_many_arguments, reason = "one per element of the record, in its order")]
pub fn tag<const N: usize>(
    buffer: &mut LineBuffer<N>,
    time: u64,
    device: i32,
    address: u64,
    category: TagCategory,
    bytes: u64,
    root: u32,
    name: impl AsRef<[u8]>,
) -> &[u8] {
    let mut line = buffer.line();
    line.raw(b"[\"tag\",").number(time).field(device).field(address);
    line.raw(b",\"").raw(category.as_str().as_bytes()).raw(b"\"").field(bytes).field(root);
    line.raw(b",").string(name.as_ref(), 4).finish(b"]");
    line.into_bytes()
}

/// `["step",…]`: optimizer step `index` (from 0) ended.
pub fn step<const N: usize>(buffer: &mut LineBuffer<N>, time: u64, thread: u32, index: u64) -> &[u8] {
    let mut line = buffer.line();
    line.raw(b"[\"step\",").number(time).field(thread).field(index).finish(b"]");
    line.into_bytes()
}

/// `["used",…]`: the whole device's use by the driver's word, and what it books for this process, if it says.
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

/// `["moved",…]`: so many bytes of the device's memory lie in host memory from now on.
pub fn moved<const N: usize>(buffer: &mut LineBuffer<N>, time: u64, device: i32, bytes: u64) -> &[u8] {
    let mut line = buffer.line();
    line.raw(b"[\"moved\",").number(time).field(device).field(bytes).finish(b"]");
    line.into_bytes()
}

/// `["lost",…]`: so many events are missing before this.
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
