//! Keyframes: the whole state as lines of a trace. A long trace is cut down to its header, a keyframe and the events after
//! it, and still replays to the same state.
//!
//! Names are written as the definitions they are; everything else is a `{"keyframe":…}` line that says which part of the
//! state it holds. Slots and cells are named by their order. Every reference is checked when a keyframe is read: a line that
//! refers to something unknown is counted as impossible and ignored.

mod packed;
mod parts;
mod restore;
mod write;
