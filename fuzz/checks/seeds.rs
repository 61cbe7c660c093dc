//! Replay of the fuzzer's seeds in tests.

use std::path::Path;

/// Passes each file of a folder to a check, and names the file if the test fails. Returns the number of files.
pub fn check_each(folder: &Path, check: fn(&[u8])) -> usize {
    let mut count = 0;
    for entry in std::fs::read_dir(folder).expect("the folder can be listed") {
        let path = entry.expect("the folder can be listed").path();
        println!("{}", path.display());
        check(&std::fs::read(&path).expect("the seed can be read"));
        count += 1;
    }
    count
}
