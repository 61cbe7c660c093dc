//! Structs that the functions in `interpose/include/memlab.h` take.

use std::ffi::{c_char, c_double, c_int};

/// A position in the lines of a recording: C's `struct memlab_position`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Position {
    pub recording: u64,
    pub bytes: u64,
}

/// One step of a training: C's `struct memlab_trained`.
///
/// Its texts are null or end in a NUL.
#[repr(C)]
pub struct Trained {
    pub step: u64,
    pub epoch: u64,
    pub batch: u64,
    pub samples: u64,
    pub duration_ns: u64,
    pub pieces: u64,
    pub offloaded_bytes: u64,
    pub loss: c_double,
    pub has_loss: c_int,
    pub way: *const c_char,
    pub phase: *const c_char,
}
