//! Hooks on PyTorch's libraries: the caching allocator's reports, the autograd engine, cuBLAS workspaces, and captures of
//! CUDA graphs.
//!
//! PyTorch calls these functions across its libraries by their mangled names, so exporting the same names from a preloaded
//! library intercepts them. They are C++ functions that may throw through the hooks, hence `extern "C-unwind"`.

pub mod allocator;
pub mod autograd;
pub mod expected;
pub mod graphs;
pub mod hook;
pub mod hooks;
pub mod package;
pub mod workspace;
