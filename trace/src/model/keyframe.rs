//! Keyframes: the whole state as lines of a trace.
//!
//! A long trace is cut down to its header, a keyframe and the events after it, and still replays to the same state.
//!
//! Names are written as their definitions. Everything else is a `{"keyframe":…}` line that names the part of the state in
//! it. The order of slots and cells is their number. A reader checks every reference of a keyframe: a line that refers to
//! something unknown is counted as impossible and ignored.

mod packed;
mod parts;
mod restore;
mod write;
