//! The host memory that holds all weights, in one piece, in the order in which they are used.

mod mapping;
mod pinning;

pub use mapping::{Arena, CHUNK};
