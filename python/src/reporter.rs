//! Native loops of `memlab.MemReporter` over all objects of a process, all of its tensors, and all blocks of a device.
//!
//! From Python, each call would cost more than its work.

pub mod blocks;
pub mod classes;
pub mod exchange;
pub mod getters;
pub mod mappings;
pub mod model;
pub mod names;
pub mod objects;
pub mod optimizer;
pub mod reader;
pub mod shapes;
pub mod table;
pub mod text;
