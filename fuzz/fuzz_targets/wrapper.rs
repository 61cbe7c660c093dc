#![no_main]

#[path = "../checks/wrapper.rs"]
mod wrapper;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| wrapper::check(bytes));
