//! The fuzzer's seeds, run by the check that the fuzzer calls.

use std::path::Path;

#[path = "../../fuzz/checks/request.rs"]
mod check;
#[path = "../../fuzz/checks/seeds.rs"]
mod seeds;

#[test]
fn every_seed_is_understood_or_refused_in_a_few_words() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds/request");
    assert!(seeds::check_each(&folder, check::check) > 5);
}
