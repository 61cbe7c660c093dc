//! The rules: each tries a change on the recording.

pub(crate) mod checkpoint;
