#![no_main]

// The parser of requests does not depend on the rest of its crate, which would take long to build.
#[path = "../checks/request.rs"]
mod check;
#[allow(dead_code)]
#[path = "../../interpose/base/src/request.rs"]
mod request;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check::check(bytes));
