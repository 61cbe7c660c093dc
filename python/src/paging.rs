//! The host's work for `memlab.page` at each module boundary and for each tensor.
//!
//! In Python it would take longer than the kernels of small layers.

pub mod counters;
pub mod dictionaries;
pub mod forward;
pub mod holder;
pub mod placed;
pub mod reads;
