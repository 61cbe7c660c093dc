//! The stand-in for libcudart, of CUDA 12 and of CUDA 13: the union of the names that programs import from either.
//!
//! It holds no memory logic. Everything is a call to the driver, found the way the real runtime finds it; what it keeps
//! for itself is what the real one keeps: the thread's device, the primary contexts, the registered kernels and the last error.

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
