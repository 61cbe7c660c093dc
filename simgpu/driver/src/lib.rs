//! The simulated libcuda.so.1: a driver whose cards are entries in a file and whose device memory is host memory.
//!
//! Memory, copies, fills, address ranges, captures and errors behave as NVIDIA documents; kernels do nothing. All work
//! is done when the call that submits it returns. The exported names are the ABI names of the real driver.
//!
//! # Layers
//!
//! ```text
//! ipc, copy, proc_address, error_names   entry points
//! copy_box        copies of two and three dimensions
//! stream, memory, pool, graph, node, context, module, arrays, vmm, host, pointer, device
//! event, userobject
//! order           how copies and fills are submitted
//! capture         stream capture
//! submitted       what an observer is told of work
//! graph_parts     nodes of graphs, and their memory
//! stream_handle   what a stream handle names
//! allocation      blocks of device memory
//! current         the thread's context
//! state           everything, behind one lock
//! objects         what handles name
//! api             the macro of the entry points
//! observed        who is told of calls and of work
//! fail            injected failures
//! space, written  blocks by address; what was written to
//! pages           mapped memory
//! real_runtime    why NVIDIA's own runtime is there
//! addresses       which addresses large blocks get
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
