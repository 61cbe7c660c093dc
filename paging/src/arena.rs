//! The host memory that holds all weights: one mapping, in order of use.

mod mapping;
mod memory_file;
mod pinning;
mod shared_part;

pub use mapping::{Arena, PIN_GRANULE};
pub use memory_file::{MemoryFile, PAGE_SIZE};
