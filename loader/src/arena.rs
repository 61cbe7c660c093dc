//! The host memory that holds all weights, in one piece, in the order of use.

mod mapping;
mod pinning;

pub use mapping::{Arena, PAGE_SIZE, PIN_GRANULE};
