//! Any bytes, read as what is asked on the control socket: never a panic, and a refusal is of a few words.
//!
//! `cargo +nightly fuzz run request` from the repository's root.

#![no_main]

use libfuzzer_sys::fuzz_target;

// libmemlab.so is no library that Rust could link, and the reader of requests needs nothing of it.
#[allow(dead_code)]
#[path = "../../interpose/src/request.rs"]
mod request;

fuzz_target!(|bytes: &[u8]| {
    match request::Request::parse(bytes) {
        Ok(request::Request::Move { ranges, .. }) => assert!(!ranges.is_empty()),
        Ok(_) => {}
        Err(why) => assert!(!why.is_empty() && why.len() < 1000),
    }
});
