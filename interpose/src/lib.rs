//! libmemlab.so: runs inside the user's process and records every allocation of GPU memory with its caller.
//!
//! Path of an event: a hook ([`torch::allocator`], [`cuda::allocation_hooks`], [`cuda::runtime_hooks`]) gets the caller from
//! [`attribution`], and the [`recorder`] appends a line to the [log](interpose_base::log). No code here may change the
//! program's result: no panic crosses a hook, no lock is taken that Python or PyTorch can hold, and a part that cannot work
//! switches itself off with one line on stderr.
//!
//! Three crates lie below this one: `base` (the trace file, symbols, settings), `python` (reading Python's stacks) and
//! `driver` (calls of the CUDA driver, movable memory).
//!
//! # Layers
//!
//! ```text
//! api, lifecycle             C functions of memlab.h; loading, the start of a recording, the end of the process
//! fork                       resets memlab in a forked child
//! control                    the thread: answers `memlab ps` and samples the cards
//! cuda::dlsym                the hook on `dlsym`, which returns the others
//! cuda::hook_lookup          the hooks on CUDA by symbol
//! cuda::get_proc_address     the hook on `cuGetProcAddress`, which returns those on the driver
//! cuda::hook_table           all hooks on CUDA
//! cuda, torch, python        hooks on CUDA and PyTorch; the agent that runs in Python
//! mover, limit::calls        moving memory to the host and back; enforcing a limit in hooks
//! moved_bytes                bytes in host memory, for the trace
//! limit                      limit on a device's memory; spilling beyond it
//! cuda::driver_memory, compaction    the driver's allocations; bounding the trace
//! ranges::nvtx               the ranges of programs that use NVTX
//! growth                     notices that memory grows
//! gpu_time                   kernels, copies and fills by the place that launched them
//! attribution, ranges        stack, layer and phase of an allocation; the ranges that the program names
//! packages                   the lines of AOTInductor packages
//! recorder                   turns events and definitions into lines
//! thread_state               state of each thread
//! intern                     ids of frames, stacks and layers
//! sources, sampler, python::state, limit::card, ranges::open    parts of the recorder
//! ranges::table              ids of ranges
//! mover::progress, cuda::graph_captures    an operation's progress; the graph pool for which a thread takes memory
//! memory_calls               driver calls in flight that allocate or free memory
//! ranges::names
//! attribution::result
//! ```

mod api;
mod attribution;
mod compaction;
mod control;
mod cuda;
mod fork;
mod gpu_time;
mod growth;
mod intern;
mod lifecycle;
mod limit;
mod memory_calls;
mod moved_bytes;
mod mover;
mod packages;
mod python;
mod ranges;
mod recorder;
mod sampler;
mod sources;
mod thread_state;
mod torch;

extern "C" fn constructor() {
    lifecycle::loaded();
}

/// The dynamic linker runs [`constructor`] when it loads the library.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;
