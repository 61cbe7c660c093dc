//! The part of NVIDIA's CUPTI that memlab uses: declarations, and a loader.
//!
//! [`bindings`] is generated from NVIDIA's headers by `make bindings` and checked in: subscriptions and callbacks, the
//! activity records of memory and of memory pools, versions and error texts. The headers themselves are not free to
//! copy and are only fetched to generate from.
//!
//! Nothing here links to CUPTI. [`Cupti`] opens the library that the program has, if it has one, and holds a pointer to
//! each function that this one knows: CUDA 12 and 13 bring CUPTIs of different ages.

// The names are C's.
#[expect(non_camel_case_types, non_snake_case, non_upper_case_globals)]
pub mod bindings;
mod loader;

pub use loader::{CallError, Cupti, LoadError, SONAMES};
