//! The fuzzer's seeds and the broken traces, run by the check that the fuzzer calls.

use std::path::Path;

#[path = "../../fuzz/checks/replay.rs"]
mod replay;
#[path = "../../fuzz/checks/seeds.rs"]
mod seeds;

#[test]
fn every_seed_is_replayed_and_its_views_add_up() {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    for folder in ["../fuzz/seeds/replay", "tests/broken"] {
        assert!(seeds::check_each(&crate_folder.join(folder), replay::check) > 5, "{folder}");
    }
}
