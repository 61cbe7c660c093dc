//! The simulated libcuda.so.1: a driver whose cards are entries in a file and whose device memory is host memory.
//!
//! Memory, copies, fills, address ranges, captures and errors behave as NVIDIA documents. Kernels do nothing. All work
//! is done when the call that submits it returns. The exported names are the ABI names of the real driver.
//!
//! # Layers
//!
//! ```text
//! ipc, copy, proc_address, error_names   entry points
//! copy_box        copies of two and three dimensions
//! stream, memory, pool, graph, node, context, module, arrays, vmm, host, pointer, device
//! event, userobject
//! order           submission of copies and fills
//! capture         stream capture
//! submitted       work as reported to an observer
//! graph_parts     nodes of graphs, and their memory
//! stream_handle   stream handles
//! allocation      blocks of device memory
//! current         the thread's context
//! state           everything, behind one lock
//! objects         objects behind handles
//! api             the macro of the entry points
//! observed        the observer of calls and work
//! fail            injected failures
//! space, written  blocks by address; written memory
//! pages           mapped memory
//! real_runtime    explains the presence of NVIDIA's own runtime
//! addresses       addresses of large blocks
//! code            error codes
//! ```

mod addresses;
mod allocation;
mod api;
mod arrays;
mod capture;
mod code;
mod context;
mod copy;
mod copy_box;
mod current;
mod device;
mod error_names;
mod event;
mod fail;
mod graph;
mod graph_parts;
mod host;
mod ipc;
mod memory;
mod module;
mod node;
mod objects;
mod observed;
mod order;
mod pages;
mod pointer;
mod pool;
mod proc_address;
mod real_runtime;
mod space;
mod state;
mod stream;
mod stream_handle;
mod submitted;
mod userobject;
mod vmm;
mod written;
