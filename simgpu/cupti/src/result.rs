//! CUPTI's error codes, with the numbers of `CUptiResult`.

use std::ffi::CStr;

pub const SUCCESS: u32 = 0;
pub const INVALID_PARAMETER: u32 = 1;
pub const MAX_LIMIT_REACHED: u32 = 12;
pub const QUEUE_EMPTY: u32 = 18;
pub const INVALID_KIND: u32 = 21;
pub const MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED: u32 = 39;
pub const UNKNOWN: u32 = 999;

/// Returns the name of a code that this library returns.
pub fn name(code: u32) -> Option<&'static CStr> {
    Some(match code {
        SUCCESS => c"CUPTI_SUCCESS",
        INVALID_PARAMETER => c"CUPTI_ERROR_INVALID_PARAMETER",
        MAX_LIMIT_REACHED => c"CUPTI_ERROR_MAX_LIMIT_REACHED",
        QUEUE_EMPTY => c"CUPTI_ERROR_QUEUE_EMPTY",
        INVALID_KIND => c"CUPTI_ERROR_INVALID_KIND",
        MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED => c"CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED",
        UNKNOWN => c"CUPTI_ERROR_UNKNOWN",
        _ => return None,
    })
}
