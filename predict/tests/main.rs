//! Forecasts from recordings.
//!
//! One binary for all integration tests of the crate: each binary would link the whole crate again.

mod peak_step;
mod phases;
mod script;
mod sequences;
mod stories;
