#![no_main]

#[path = "../checks/replay.rs"]
mod replay;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| replay::check(bytes));
