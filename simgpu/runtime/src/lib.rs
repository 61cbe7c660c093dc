//! Simulated libcudart of CUDA 12 and CUDA 13: the union of the names that programs import from either.
//!
//! It has no memory logic: every function calls the driver, which it finds as the real runtime does. Like the real one,
//! it stores the thread's device, the primary contexts, the registered kernels and the last error.
//!
//! # Layers
//!
//! ```text
//! arrays, cpu_only, device, entry_point, error, fresh, graph, stream, thread_exit, unsupported
//! kernel          modules, symbols and launches
//! memory          allocations and copies
//! api             the macros of the entry points
//! current         the thread's device and context
//! driver_calls    the driver's functions
//! code, observed  error codes; the observer of calls
//! ```

mod api;
mod arrays;
mod code;
mod cpu_only;
mod current;
mod device;
mod driver_calls;
mod entry_point;
mod error;
mod fresh;
mod graph;
mod kernel;
mod memory;
mod observed;
mod stream;
mod thread_exit;
mod unsupported;
