//! Parses any bytes as a request on the control socket: never panics, and errors are short.
//!
//! Run `cargo +nightly fuzz run request` from the repository's root.

#![no_main]

use libfuzzer_sys::fuzz_target;

// Rust cannot link libmemlab.so, and the parser of requests does not depend on the rest of it.
#[allow(dead_code)]
#[path = "../../interpose/base/src/request.rs"]
mod request;

fuzz_target!(|bytes: &[u8]| {
    match request::ControlRequest::parse(bytes) {
        Ok(request::ControlRequest::Move { ranges, .. }) => assert!(!ranges.is_empty()),
        Ok(_) => {}
        Err(why) => assert!(!why.is_empty() && why.len() < 1000),
    }
});
