//! Parses any bytes as a request on the control socket: never panics, and errors are short.
//!
//! Run `cargo +nightly fuzz run request` from the repository's root.

#![no_main]

use libfuzzer_sys::fuzz_target;
use memlab_protocol::request::ControlRequest;

fuzz_target!(|bytes: &[u8]| {
    match ControlRequest::parse(bytes) {
        Ok(ControlRequest::Move { ranges, .. }) => assert!(!ranges.is_empty()),
        Ok(_) => {}
        Err(why) => assert!(!why.is_empty() && why.len() < 1000),
    }
});
