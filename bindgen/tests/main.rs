//! CUPTI's declarations and its loader.
//!
//! One program for all integration tests of the crate: each program would link all of it again.

mod common;
mod installed_cupti;
mod loading;
mod truth;
