//! The process's CUPTI.

use std::sync::OnceLock;

use cupti_sys::Cupti;

/// Set if times are recorded.
pub static CUPTI: OnceLock<Cupti> = OnceLock::new();
