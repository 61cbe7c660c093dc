//! The runtime's error codes.

/// A `cudaError_t` other than success. Since CUDA 10.1 it has the number of the corresponding `CUresult`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error(pub i32);

impl Error {
    pub const INVALID_VALUE: Error = Error(1);
    pub const INVALID_SYMBOL: Error = Error(13);
    pub const INSUFFICIENT_DRIVER: Error = Error(35);
    pub const INVALID_DEVICE_FUNCTION: Error = Error(98);
    pub const INVALID_DEVICE: Error = Error(101);
    pub const SYMBOL_NOT_FOUND: Error = Error(500);
    pub const NOT_READY: Error = Error(600);
    pub const NOT_SUPPORTED: Error = Error(801);
    pub const UNKNOWN: Error = Error(999);
}

/// Result of the body of an entry point.
pub type Answer = Result<(), Error>;
