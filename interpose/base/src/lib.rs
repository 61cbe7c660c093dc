//! Foundations shared by every part of memlab inside the user's process.
//!
//! # Layers
//!
//! ```text
//! log, nvml                  the trace file; use of the cards
//! thread_sanitizer, got_patch
//! symbols, frame_role, source_file
//! file_names, config
//! clock, loaded_objects, locks, panics, recursion, background, descriptors, stderr, waker
//! ```

pub mod background;
pub mod clock;
pub mod config;
pub mod descriptors;
pub mod file_names;
pub mod frame_role;
pub mod got_patch;
pub mod loaded_objects;
pub mod locks;
pub mod log;
pub mod nvml;
pub mod panics;
pub mod recursion;
pub mod source_file;
pub mod stderr;
pub mod symbols;
pub mod thread_sanitizer;
pub mod waker;
