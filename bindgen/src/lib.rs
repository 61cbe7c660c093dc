//! The part of NVIDIA's CUPTI that memlab uses: declarations, and a loader.
//!
//! [`bindings`] is generated from NVIDIA's headers by `make bindings` and checked in. It contains subscriptions and
//! callbacks, the activity records of memory and of memory pools, versions and error texts. The license of the headers
//! does not allow copying them, so they are only downloaded for generation.
//!
//! Nothing here links to CUPTI. [`Cupti`] opens the program's library, if any, and holds a pointer to each function
//! that it exports: CUDA 12 and 13 ship different CUPTI versions.
//!
//! # Layers
//!
//! ```text
//! loader      opens the program's CUPTI
//! bindings    NVIDIA's declarations
//! ```

// C names.
#[expect(non_camel_case_types, non_snake_case, non_upper_case_globals)]
#[allow(clippy::all, clippy::undocumented_unsafe_blocks, reason = "bindgen writes it")]
pub mod bindings;
mod loader;

pub use loader::{CallError, Cupti, LoadError, SONAMES, Subscription};
