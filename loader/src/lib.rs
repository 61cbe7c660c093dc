//! Chunk and page loading: runs models whose weights do not fit on the GPU.

pub mod checkpoint;
pub mod plan;
