//! Runs the seeds of the fuzzer, by the check that it calls.

use std::path::Path;

#[path = "../../fuzz/checks/seeds.rs"]
mod seeds;
#[path = "../../fuzz/checks/wrapper.rs"]
mod wrapper;

#[test]
fn every_seed_is_parsed_and_its_origins_are_of_lines_that_exist() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds/wrapper");
    assert!(seeds::check_each(&folder, wrapper::check) > 5);
}
