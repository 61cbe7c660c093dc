//! What `memlab.MemReporter` does with all objects of a process, all of its tensors, and all blocks of a device: in loops here,
//! because a call from Python for each costs more than its answer.

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
