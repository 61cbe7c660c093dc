//! Runs `examples/cupti_truth.rs` with a fake CUPTI that has four records, without a GPU.

use crate::common;
use std::path::{Path, PathBuf};
use std::process::Command;

struct Bench {
    folder: PathBuf,
    observer: PathBuf,
}

impl Bench {
    fn new(name: &str) -> Self {
        // Tests are in `deps`, examples beside it.
        let this = std::env::current_exe().expect("knows its path");
        let observer = this.ancestors().nth(2).expect("is in deps").join("examples/libcupti_truth.so");
        let folder = common::folder(name);
        common::library(&folder, "libcuda.so.1", ""); // replaces the driver
        Self { folder, observer }
    }

    fn build(&self, source: &str, output: &str, flags: &[&str]) -> PathBuf {
        let output = self.folder.join(output);
        common::compile(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(source), &output, flags);
        output
    }

    /// Returns the standard error of the host and the file of the observer.
    fn run(&self, injected: bool, cupti: &Path) -> (String, Option<String>) {
        let host = self.build("host.c", "host", &[]);
        let output = self.folder.join("truth.txt");
        let _ = std::fs::remove_file(&output);
        let mut command = Command::new(host);
        command
            .env("LD_LIBRARY_PATH", &self.folder)
            .env("CUPTI_TRUTH_OUTPUT", &output)
            .env("CUPTI_TRUTH_LIBRARY", cupti);
        if injected {
            command.arg(&self.observer);
        } else {
            command.env("LD_PRELOAD", &self.observer);
        }
        let done = command.output().expect("runs");
        assert!(done.status.success(), "{done:?}");
        assert!(done.stderr.is_empty(), "{done:?}");
        (String::from_utf8(done.stdout).expect("is text"), std::fs::read_to_string(output).ok())
    }
}

const EXPECTED: &str = "cupti 130401\n\
    alloc device 4096 1000 0 5\n\
    alloc async 8192 64 1 6\n\
    alloc pinned 12288 512 0 7\n\
    free device 4096 1000 0 8\n\
    end 3\n";

#[test]
fn writes_the_records_of_cupti() {
    let bench = Bench::new("told");
    let cupti = bench.build("fake_cupti.c", "libcupti.so", &["-shared", "-fPIC"]);
    // WHEN the driver injects it, twice, THEN every memory record is written once, and none of a forked child
    assert_eq!(bench.run(true, &cupti), (String::new(), Some(EXPECTED.into())));
    // AND the same when it is preloaded
    assert_eq!(bench.run(false, &cupti), (String::new(), Some(EXPECTED.into())));
}

#[test]
fn a_missing_cupti_is_reported() {
    let bench = Bench::new("without");
    let (said, written) = bench.run(true, Path::new("/nowhere/libcupti.so"));
    assert_eq!(said, "");
    let written = written.expect("says why");
    assert!(written.starts_with("failed CUPTI was not found (/nowhere/libcupti.so: "), "{written}");
}

#[test]
fn without_a_driver_or_an_output_nothing_happens() {
    let bench = Bench::new("nothing");
    // GIVEN a program that does not use CUDA, with the observer preloaded
    let output = bench.folder.join("truth.txt");
    let mut command = Command::new("echo");
    let done = command.arg("hello").env("LD_PRELOAD", &bench.observer).env("CUPTI_TRUTH_OUTPUT", &output).output();
    let done = done.expect("runs");
    assert_eq!((done.stdout.as_slice(), done.stderr.as_slice()), (&b"hello\n"[..], &b""[..]));
    assert!(!output.exists());
    // AND one without an output path
    let host = bench.build("host.c", "host", &[]);
    let done = Command::new(host).env("LD_PRELOAD", &bench.observer).output().expect("runs");
    assert_eq!((done.stdout.as_slice(), done.stderr.as_slice()), (&b"nothing to inject\n"[..], &b""[..]));
}
