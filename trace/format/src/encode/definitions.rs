//! Encoder of definitions.

use super::buffer::{LineBuffer, MAX_NUMBER_BYTES};
use crate::record::{CodeKind, FORMAT};

/// The header line.
#[derive(Clone, Copy, Debug)]
pub struct Header<'a> {
    /// Version of memlab that writes.
    pub version: &'a str,
    /// Random id of the trace.
    pub id: &'a str,
    /// The process.
    pub pid: u32,
    /// Id of the parent process.
    pub parent_pid: u32,
    /// Start of the trace, in nanoseconds since 1970. All other times count from it.
    pub start_unix_ns: u64,
    /// `MEMLAB_RUN`: the `memlab run` that started the process.
    pub run: Option<&'a str>,
    /// Command line as in `/proc/self/cmdline`: each argument ends in a NUL.
    pub command: &'a [u8],
    /// The working directory.
    pub directory: &'a [u8],
    /// The host name.
    pub host: &'a [u8],
    /// `RANK`, if a launcher set it.
    pub rank: Option<u32>,
    /// `LOCAL_RANK`, if a launcher set it.
    pub local_rank: Option<u32>,
    /// `WORLD_SIZE`, if a launcher set it.
    pub world_size: Option<u32>,
}

/// Writes the first line of a trace. Arguments that do not fit are left out; the last one kept ends in `…`.
pub fn header<'b, const N: usize>(buffer: &'b mut LineBuffer<N>, header: &Header<'_>) -> &'b [u8] {
    // Room after the command: two strings of at most 1024 and 256 bytes, and the ranks.
    const AFTER_COMMAND: usize = 1024 + 256 + 128;
    const RANKS: usize = 96;
    let mut line = buffer.line();
    line.raw(b"{\"memlab\":").number(FORMAT);
    line.raw(b",\"version\":").string(header.version.as_bytes(), AFTER_COMMAND);
    line.raw(b",\"id\":").string(header.id.as_bytes(), AFTER_COMMAND);
    line.raw(b",\"pid\":").number(header.pid);
    line.raw(b",\"parent_pid\":").number(header.parent_pid);
    line.raw(b",\"start_unix_ns\":").number(header.start_unix_ns);
    if let Some(run) = header.run {
        line.raw(b",\"run\":").string(run.as_bytes(), AFTER_COMMAND);
    }
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

/// Writes a device: its ordinal, name, memory in bytes, and PCI bus id.
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

/// Writes the bandwidth of a device's link to the host, in one direction.
pub fn link<const N: usize>(buffer: &mut LineBuffer<N>, device: i32, bytes_per_second: u64) -> &[u8] {
    let mut line = buffer.line();
    line.raw(b"{\"link\":").number(device).raw(b",\"bytes_per_second\":").number(bytes_per_second).finish(b"}");
    line.into_bytes()
}

/// Writes the limit of the process on a device (`None`: no limit), and the handling beyond it: `oom` or `spill`.
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

/// Writes the mesh dimensions of the process: name, coordinate, size. Dimensions that do not fit are left out.
pub fn mesh<'b, const N: usize>(buffer: &'b mut LineBuffer<N>, dimensions: &[(&[u8], u32, u32)]) -> &'b [u8] {
    const AFTER_NAME: usize = 2 * (MAX_NUMBER_BYTES + 1) + 8;
    let mut line = buffer.line();
    line.raw(b"{\"mesh\":[");
    for (index, (name, coordinate, size)) in dimensions.iter().enumerate() {
        if line.room() < AFTER_NAME + 64 {
            break;
        }
        line.raw(if index == 0 { b"[".as_slice() } else { b",[".as_slice() });
        line.string(name, AFTER_NAME).field(*coordinate).field(*size).raw(b"]");
    }
    line.finish(b"]}");
    line.into_bytes()
}

/// Writes the pipeline stages of the process, and the number of stages in the pipeline.
pub fn stages<'b, const N: usize>(buffer: &'b mut LineBuffer<N>, stages: &[u32], of: u32) -> &'b [u8] {
    let mut line = buffer.line();
    line.raw(b"{\"stages\":[");
    for (index, stage) in stages.iter().enumerate() {
        if line.room() < 3 * MAX_NUMBER_BYTES {
            break;
        }
        line.raw(if index == 0 { b"" } else { b"," }).number(*stage);
    }
    line.raw(b"],\"of\":").number(of).finish(b"}");
    line.into_bytes()
}

/// Writes other processes on a device with the bytes of each. Processes that do not fit are left out.
pub fn others<'b, const N: usize>(buffer: &'b mut LineBuffer<N>, device: i32, processes: &[(u32, u64)]) -> &'b [u8] {
    const ENTRY: usize = 2 * (MAX_NUMBER_BYTES + 1) + 3;
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

/// Writes a thread: its id in events, its id in the system, and its name.
pub fn thread<const N: usize>(buffer: &mut LineBuffer<N>, thread: u32, tid: u32, name: impl AsRef<[u8]>) -> &[u8] {
    let mut line = buffer.line();
    line.raw(b"{\"thread\":").number(thread);
    line.raw(b",\"tid\":").number(tid);
    line.raw(b",\"name\":").string(name.as_ref(), 4).finish(b"}");
    line.into_bytes()
}

/// Writes software found in the process, and its folder.
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

/// Writes a file or folder of code, and the owner of the code.
pub fn code_root<const N: usize>(buffer: &mut LineBuffer<N>, code: CodeKind, root: impl AsRef<[u8]>) -> &[u8] {
    let mut line = buffer.line();
    line.raw(b"{\"code\":\"").raw(code.as_str().as_bytes());
    line.raw(b"\",\"root\":").string(root.as_ref(), 4).finish(b"}");
    line.into_bytes()
}

/// Writes a Python frame: one place in one function; `line` is `None` if the code object has none.
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

/// Writes a frame of compiled code, with the program's frames that it stands for, outermost first.
///
/// The list is empty if these frames are not known.
pub fn compiled_frame<'b, const N: usize>(
    buffer: &'b mut LineBuffer<N>,
    frame: u32,
    file: impl AsRef<[u8]>,
    line: Option<u32>,
    function: impl AsRef<[u8]>,
    stands_for: &[u32],
) -> &'b [u8] {
    /// Maximum number of frames that fit; the outermost are left out.
    const MAX_FRAMES: usize = 128;
    let mut out = buffer.line();
    out.raw(b"{\"frame\":").number(frame);
    out.raw(b",\"stands_for\":[");
    let kept = &stands_for[stands_for.len().saturating_sub(MAX_FRAMES)..];
    for (index, known) in kept.iter().enumerate() {
        out.raw(if index == 0 { b"" } else { b"," }).number(*known);
    }
    out.raw(b"],\"file\":").string(file.as_ref(), (N / 3).max(48));
    out.raw(b",\"line\":").optional(line);
    out.raw(b",\"function\":").string(function.as_ref(), 4).finish(b"}");
    out.into_bytes()
}

/// Writes the text of a line of a source file.
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

/// Writes a stack: the caller's stack (0: none) and the frame on top of it.
pub fn stack<const N: usize>(buffer: &mut LineBuffer<N>, stack: u32, parent: u32, frame: u32) -> &[u8] {
    let mut line = buffer.line();
    line.raw(b"{\"stack\":").number(stack);
    line.raw(b",\"parent\":").number(parent);
    line.raw(b",\"frame\":").number(frame).finish(b"}");
    line.into_bytes()
}

/// Writes a layer: the calling layer (0: an outermost module), the class, the qualified name once known, and the variable
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

/// Writes a range named by the program: the enclosing range (0: none), and its name.
pub fn range<const N: usize>(buffer: &mut LineBuffer<N>, range: u32, parent: u32, name: impl AsRef<[u8]>) -> &[u8] {
    let mut line = buffer.line();
    line.raw(b"{\"range\":").number(range);
    line.raw(b",\"parent\":").number(parent);
    line.raw(b",\"name\":").string(name.as_ref(), 4).finish(b"}");
    line.into_bytes()
}

/// Writes the first requests to PyTorch's allocator that fit into the buffer.
///
/// Also returns their number.
pub fn requests<'b, const N: usize>(
    buffer: &'b mut LineBuffer<N>,
    device: i32,
    entries: &[[u64; 6]],
) -> (&'b [u8], usize) {
    const ENTRY: usize = 6 * (MAX_NUMBER_BYTES + 1) + 3;
    let mut line = buffer.line();
    line.raw(b"{\"requests\":").number(device).raw(b",\"asked\":[");
    let mut written = 0;
    for &[kind, address, bytes, stream, first, second] in entries {
        if line.room() < ENTRY + 4 {
            break;
        }
        line.raw(if written == 0 { b"[".as_slice() } else { b",[".as_slice() });
        line.number(kind).field(address).field(bytes).field(stream).field(first).field(second).raw(b"]");
        written += 1;
    }
    line.finish(b"]}");
    (line.into_bytes(), written)
}

/// Fields of a `trained` line: the progress of one optimizer step.
#[derive(Clone, Copy, Debug, Default)]
pub struct Trained<'a> {
    /// Index of the step.
    pub step: u64,
    /// The epoch, from 0.
    pub epoch: u64,
    /// Index of the step in the epoch, from 0.
    pub batch: u64,
    /// Name of the trained model, if the program trains several.
    pub phase: Option<&'a [u8]>,
    /// Number of samples.
    pub samples: u64,
    /// Nanoseconds since the end of the previous step.
    pub duration: u64,
    /// Loss of the step, if known.
    pub loss: Option<f64>,
    /// Method that computed the gradients, if known.
    pub way: Option<&'a [u8]>,
    /// Number of pieces that went through the model.
    pub pieces: u64,
    /// Bytes copied to the host.
    pub offloaded: u64,
}

/// Writes the training progress of one optimizer step.
pub fn trained<'b, const N: usize>(buffer: &'b mut LineBuffer<N>, step: &Trained<'_>) -> &'b [u8] {
    const TAIL: usize = 2 * MAX_NUMBER_BYTES + 32;
    let mut line = buffer.line();
    line.raw(b"{\"trained\":").number(step.step);
    line.raw(b",\"epoch\":").number(step.epoch);
    line.raw(b",\"batch\":").number(step.batch);
    line.raw(b",\"samples\":").number(step.samples);
    line.raw(b",\"duration\":").number(step.duration);
    line.raw(b",\"loss\":").float(step.loss);
    let half = line.room().saturating_sub(TAIL) / 2;
    line.raw(b",\"phase\":").optional_string(step.phase, half + TAIL);
    line.raw(b",\"way\":").optional_string(step.way, TAIL);
    line.raw(b",\"pieces\":").number(step.pieces);
    line.raw(b",\"offloaded\":").number(step.offloaded).finish(b"}");
    line.into_bytes()
}

/// Writes the name for a number in `work` events: a kernel's mangled name, a copy, or `fill`.
pub fn kernel<'b, const N: usize>(buffer: &'b mut LineBuffer<N>, number: u32, name: &[u8]) -> &'b [u8] {
    let mut line = buffer.line();
    line.raw(b"{\"kernel\":").number(number).raw(b",\"name\":").string(name, 4).finish(b"}");
    line.into_bytes()
}

/// Writes a warning of memlab about this process, as text for the user.
pub fn warning<const N: usize>(buffer: &mut LineBuffer<N>, warning: impl AsRef<[u8]>) -> &[u8] {
    let mut line = buffer.line();
    line.raw(b"{\"warning\":").string(warning.as_ref(), 4).finish(b"}");
    line.into_bytes()
}

/// Writes that the trace is empty from after this line up to byte `skip`.
pub fn skip<const N: usize>(buffer: &mut LineBuffer<N>, skip: u64) -> &[u8] {
    let mut line = buffer.line();
    line.raw(b"{\"skip\":").number(skip).finish(b"}");
    line.into_bytes()
}
