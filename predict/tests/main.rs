//! Forecasts from recordings.
//!
//! One program for all integration tests of the crate: each program would link all of it again.

mod phases;
mod script;
mod sequences;
mod stories;
