//! The simulated libcuda.so.1: a driver whose cards are entries in a file and whose device memory is host memory.
//!
//! Memory, copies, fills, address ranges, captures and errors behave as NVIDIA documents; kernels do nothing. All work is done
//! when the call that submits it returns. The exported names are the ABI names of the real driver.

mod api;
mod arrays;
mod capture;
mod code;
mod context;
mod copy;
mod device;
mod event;
mod fail;
mod graph;
mod host;
mod ipc;
mod memory;
mod module;
mod node;
mod pages;
mod pointer;
mod pool;
mod proc_address;
mod space;
mod state;
mod stream;
mod userobject;
mod vmm;
