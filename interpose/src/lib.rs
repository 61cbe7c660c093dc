//! libmemlab.so: runs inside the user's process, sees every allocation of GPU memory, and says who asked for it.
//!
//! The way of an event: a hook ([`torch::allocator`], [`cuda::allocation_hooks`], [`cuda::runtime_hooks`]) asks
//! [`attribution`] who calls, and the [`recorder`] appends a line to the [`log`]. Nothing here may change the program's
//! result: no panic crosses a hook, no lock is taken that Python or PyTorch can hold, and a part that cannot work switches
//! itself off with one line on stderr.

mod api;
mod attribution;
mod background;
mod compaction;
mod config;
mod control;
mod cuda;
mod descriptors;
mod file_names;
mod fork;
mod frame_role;
mod got_patch;
mod intern;
mod lifecycle;
mod limit;
mod loaded_objects;
mod locks;
mod log;
mod moved_bytes;
mod mover;
mod nvml;
mod panics;
mod python;
mod recorder;
mod recursion;
mod request;
mod sampler;
mod sources;
mod stderr;
mod symbols;
mod thread_state;
mod torch;
mod vmm;

extern "C" fn constructor() {
    lifecycle::loaded();
}

/// Has the dynamic linker run [`constructor`] when it loads the library.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;
