//! The driver's error codes, with the numbers of `CUresult` in cuda.h.

/// Result of the body of an entry point.
pub type Answer = Result<(), Code>;

/// A `CUresult` other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub i32);

impl Code {
    pub const INVALID_VALUE: Code = Code(1);
    pub const OUT_OF_MEMORY: Code = Code(2);
    pub const NOT_INITIALIZED: Code = Code(3);
    pub const NO_DEVICE: Code = Code(100);
    pub const INVALID_DEVICE: Code = Code(101);
    pub const INVALID_CONTEXT: Code = Code(201);
    pub const INVALID_HANDLE: Code = Code(400);
    pub const NOT_FOUND: Code = Code(500);
    pub const PEER_ACCESS_ALREADY_ENABLED: Code = Code(704);
    pub const PEER_ACCESS_NOT_ENABLED: Code = Code(705);
    pub const HOST_MEMORY_ALREADY_REGISTERED: Code = Code(712);
    pub const HOST_MEMORY_NOT_REGISTERED: Code = Code(713);
    pub const NOT_SUPPORTED: Code = Code(801);
    pub const STREAM_CAPTURE_UNSUPPORTED: Code = Code(900);
    pub const STREAM_CAPTURE_INVALIDATED: Code = Code(901);
    pub const STREAM_CAPTURE_UNMATCHED: Code = Code(903);
    pub const STREAM_CAPTURE_MERGE: Code = Code(902);
    pub const STREAM_CAPTURE_UNJOINED: Code = Code(904);
    pub const STREAM_CAPTURE_WRONG_THREAD: Code = Code(908);
    pub const CAPTURED_EVENT: Code = Code(907);
    pub const OPERATING_SYSTEM: Code = Code(304);
    pub const CONTEXT_IS_DESTROYED: Code = Code(709);
    pub const ILLEGAL_STATE: Code = Code(401);
    pub const MAP_FAILED: Code = Code(205);
    pub const STREAM_CAPTURE_IMPLICIT: Code = Code(906);
    pub const FILE_NOT_FOUND: Code = Code(301);
    pub const UNKNOWN: Code = Code(999);
}
