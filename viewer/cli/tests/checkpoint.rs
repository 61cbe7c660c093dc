//! `memlab offload --full` and `memlab restore` with a fake CUDA driver.

use std::process::Command;

use crate::common::child::{alone, output};
use crate::common::process::{Movable, Runtime};
use serde_json::json;
use tempfile::TempDir;

/// A folder with a fake driver.
struct Driver {
    folder: TempDir,
}

impl Driver {
    fn new(options: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/driver.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-o"]).arg(folder.path().join("libcuda.so.1")).args(options).arg(source);
        alone(&mut compiler);
        let compiled = output(&mut compiler);
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        Self { folder }
    }

    fn put(&self, name: &str, number: u32) {
        std::fs::write(self.folder.path().join(name), number.to_string()).expect("written");
    }

    /// Makes the next calls of a function fail.
    fn fail(&self, call: &str, times: u32, code: u32) {
        self.put(&format!("fail-{call}"), times);
        self.put(&format!("code-{call}"), code);
    }

    fn state(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("state")).unwrap_or_else(|_| "0".to_owned())
    }

    /// The calls made so far.
    fn calls(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log"))
            .unwrap_or_default()
            .lines()
            .collect::<Vec<_>>()
            .join(" ")
    }

    fn memlab(&self, runtime: &Runtime, line: &str) -> (Option<i32>, String, String) {
        let mut command = runtime.memlab(&line.split_whitespace().collect::<Vec<_>>());
        let output = output(command.env("LD_LIBRARY_PATH", self.folder.path()).env("FAKE_CUDA", self.folder.path()));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    }
}

#[test]
fn a_process_without_memlab_is_checkpointed_and_restored() {
    // GIVEN a process without memlab
    let (driver, runtime) = (Driver::new(&[]), Runtime::new());
    let pid = std::process::id();
    // WHEN it is offloaded THEN the driver locks and checkpoints it
    let (code, out, err) = driver.memlab(&runtime, &format!("offload {pid} --full --timeout 2s"));
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(out.starts_with(&format!("checkpointed process {pid} in ")), "{out}");
    assert!(out.contains(&format!("`memlab restore {pid}` restores it")), "{out}");
    assert_eq!((driver.calls().as_str(), driver.state().as_str()), ("timeout 2000, reserved 0 lock checkpoint", "2"));
    // AND a second offload is refused
    let (code, _, err) = driver.memlab(&runtime, &format!("offload {pid} --full"));
    assert_eq!(code, Some(1));
    assert!(err.contains("is already checkpointed"), "{err}");
    // WHEN it is restored THEN the driver restores and unlocks it
    let (code, out, err) = driver.memlab(&runtime, &format!("restore {pid} --json"));
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert_eq!(serde_json::from_str::<serde_json::Value>(&out).expect("JSON")["state"], "running");
    assert!(driver.calls().ends_with("restore unlock") && driver.state() == "0", "{}", driver.calls());
    // AND then nothing is left to restore
    let (code, _, err) = driver.memlab(&runtime, &format!("restore {pid}"));
    assert_eq!(code, Some(2));
    assert!(err.contains("is not recorded"), "{err}");
    let (code, _, err) = driver.memlab(&runtime, "offload 4194304 --full");
    assert_eq!(code, Some(2));
    assert!(err.contains("no process 4194304"), "{err}");
}

#[test]
fn a_process_that_memlab_cannot_move_is_checkpointed_by_the_driver() {
    // GIVEN a recorded process started without --offload
    let (driver, runtime) = (Driver::new(&[]), Runtime::new());
    let why_not = Some("it was started without --offload".to_owned());
    let requests = Movable { why_not, ..Movable::new(4_200_201) }.listen(&runtime);
    // WHEN it is offloaded THEN the driver does it, memlab reports that, and the process is notified
    let (code, out, err) = driver.memlab(&runtime, "offload 4200201");
    assert_eq!(code, Some(0), "{err}");
    assert!(err.contains("started without --offload: using the CUDA driver's checkpoint"), "{err}");
    assert!(out.starts_with("checkpointed train.py (pid 4200201) in "), "{out}");
    let (_, out, _) = driver.memlab(&runtime, "ps");
    assert!(out.lines().any(|line| line.contains("4200201") && line.contains("checkpointed")), "{out}");
    // AND it is restored the same way
    assert_eq!(driver.memlab(&runtime, "restore 4200201").0, Some(0));
    let checkpointed = |value: bool| json!({ "command": "checkpointed", "value": value });
    assert_eq!(requests.all(), [checkpointed(true), checkpointed(false)]);
    let (code, _, err) = driver.memlab(&runtime, "restore 4200201");
    assert_eq!(code, Some(2));
    assert!(err.contains("has nothing to restore"), "{err}");
}

#[test]
fn a_failed_checkpoint_lets_the_program_continue() {
    let (driver, runtime) = (Driver::new(&[]), Runtime::new());
    let line = format!("offload {} --full", std::process::id());
    // GIVEN a driver that cannot checkpoint this process THEN it is unlocked, and the reason is printed
    driver.fail("checkpoint", 1, 801);
    let (code, out, err) = driver.memlab(&runtime, &line);
    assert_eq!((code, out.as_str(), driver.state().as_str()), (Some(1), "", "0"));
    assert!(driver.calls().ends_with("lock checkpoint unlock"), "{}", driver.calls());
    assert!(err.contains("operation not supported (CUDA_ERROR_NOT_SUPPORTED); the program continues"), "{err}");
    assert!(err.contains("memlab run --offload"), "{err}");
    // AND a process that cannot be locked is left unchanged
    driver.fail("lock", 1, 1);
    let (code, _, err) = driver.memlab(&runtime, &line);
    assert_eq!((code, driver.calls().ends_with("lock")), (Some(1), true));
    assert!(err.contains("--timeout") && !err.contains('\u{1b}'), "{err}");
    // AND a process that stays locked is reported, and restore unlocks it
    driver.fail("checkpoint", 1, 1);
    driver.fail("unlock", 1, 1);
    let (_, _, err) = driver.memlab(&runtime, &line);
    assert!(err.contains("could not continue") && driver.state() == "1", "{err}");
    assert_eq!(driver.memlab(&runtime, &format!("restore {}", std::process::id())).0, Some(0));
    assert_eq!(driver.state(), "0");
}

#[test]
fn restore_waits_for_a_full_device() {
    let (driver, runtime) = (Driver::new(&[]), Runtime::new());
    let pid = std::process::id();
    driver.put("state", 2);
    driver.fail("restore", 3, 2);
    let (code, _, err) = driver.memlab(&runtime, &format!("restore {pid}"));
    assert_eq!((code, driver.state().as_str()), (Some(1), "2"));
    assert!(err.contains("out of memory (CUDA_ERROR_OUT_OF_MEMORY); it stays in host memory"), "{err}");
    let (code, out, err) = driver.memlab(&runtime, &format!("restore {pid} --wait"));
    assert_eq!((code, driver.state().as_str()), (Some(0), "0"), "{err}");
    assert!(out.starts_with("restored") && err.matches("retrying until").count() == 1, "{out}{err}");
    // AND a lost process is reported
    driver.put("state", 3);
    let (code, _, err) = driver.memlab(&runtime, &format!("restore {pid} --wait"));
    assert_eq!(code, Some(1));
    assert!(err.contains("end the program and restart it"), "{err}");
}

#[test]
fn an_old_driver_is_reported_with_an_alternative() {
    let (driver, runtime) = (Driver::new(&["-DOLD"]), Runtime::new());
    let (code, _, err) = driver.memlab(&runtime, &format!("offload {} --full", std::process::id()));
    assert_eq!(code, Some(1));
    assert!(err.contains("CUDA 12.4") && err.contains("570 or newer") && err.contains("memlab run --offload"), "{err}");
}
