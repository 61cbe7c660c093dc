//! CUPTI's declarations and its loader.
//!
//! One binary for all integration tests of the crate: each binary would link the whole crate again.

mod common;
mod installed_cupti;
mod loading;
mod truth;
