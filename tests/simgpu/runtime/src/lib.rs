//! Simulated libcudart of CUDA 12 and CUDA 13: the union of the names that programs import from either.
//!
//! It has no memory logic: every function calls the driver, which it finds as the real runtime does. Like the real one, it
//! stores the thread's device, the primary contexts, the registered kernels and the last error.

mod api;
mod arrays;
mod device;
mod driver;
mod entry_point;
mod error;
mod graph;
mod kernel;
mod memory;
mod stream;
mod thread_exit;
mod unsupported;
