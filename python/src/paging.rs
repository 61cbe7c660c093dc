//! What `memlab.page` does on the host at each boundary of a module and for each tensor. From Python it would take longer than the
//! kernels of small layers.

pub mod counters;
pub mod dictionaries;
pub mod forward;
pub mod holder;
pub mod placed;
pub mod reads;
