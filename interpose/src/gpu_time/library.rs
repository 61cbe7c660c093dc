//! CUPTI in this process.

use std::sync::OnceLock;

use cupti_sys::Cupti;

/// Set if GPU time is recorded.
pub static CUPTI: OnceLock<Cupti> = OnceLock::new();
