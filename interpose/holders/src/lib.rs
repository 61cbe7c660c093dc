//! Finds the objects of a running Python that hold GPU memory, in a child process that the program does not notice.
//!
//! The child is a copy of the process with one thread. It owns the GIL if the thread that made it did, so it may read every
//! object, and whatever it changes stays in the child: the program's objects, reference counts and settings are untouched.
//! Where the system refuses a child, the search runs in the process for a limited time, and drops its references at the end.
//!
//! # Layers
//!
//! ```text
//! child                 a copy of the process that writes a graph to a pipe
//! search                the graph, with names
//! walk                  the objects that lead to memory
//! signs                 signs of what only C++ holds
//! opaque                what the collector does not see in arrays and TorchScript
//! names                 names of objects
//! torch, store_lines    what tensors refer to in C++; the line that stores a name
//! types                 what the objects of a type are
//! objects
//! ```

mod names;
mod objects;
mod opaque;
mod search;
mod signs;
mod store_lines;
mod torch;
mod types;
mod walk;

pub mod child;

pub use search::{find, find_in_place};
