//! What the `simgpu` command does around the command it runs.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use simgpu_tests::{compile, libraries, run, simgpu, sources, succeed, text};

/// The same number on every Linux.
const SIGTERM: i32 = 15;

#[test]
fn the_commands_end_is_simgpus_end() {
    // GIVEN commands that end in different ways, WHEN run, THEN the exit code is theirs.
    assert_eq!(run(simgpu().args(["sh", "-c", "exit 7"])).status.code(), Some(7));
    assert_eq!(run(simgpu().args(["/no/such/command"])).status.code(), Some(127));
    // AND so is the signal: simgpu becomes the command.
    let mut direct = Command::new(sources().join("simgpu"));
    let output = run(direct.args(["sh", "-c", "kill -TERM $$"]).env("SIMGPU_LIBS", libraries()));
    assert_eq!(output.status.signal(), Some(SIGTERM));
}

#[test]
fn wrong_options_are_explained() {
    // GIVEN wrong options, WHEN simgpu starts, THEN it says what is wrong and runs nothing.
    for (options, complaint) in [
        (vec![], "usage"),
        (vec!["--memory", "lots", "true"], "--memory"),
        (vec!["--devices", "0", "true"], "--devices"),
        (vec!["--devices", "17", "true"], "--devices"),
        (vec!["--fast", "true"], "usage"),
    ] {
        let output = run(simgpu().args(&options));
        assert_eq!(output.status.code(), Some(2), "{options:?}");
        assert!(text(&output.stderr).contains(complaint), "{options:?}");
    }
    // AND missing libraries are said to be missing.
    let output = run(simgpu().arg("true").env("SIMGPU_LIBS", "/nowhere"));
    assert!(text(&output.stderr).contains("cargo build --release"));
}

#[test]
fn nothing_is_left_behind() {
    // GIVEN a program that used the cards, WHEN it has ended, THEN the file they shared is gone.
    let program = compile("failures", &[]);
    let script = format!("{0} > /dev/null && {0} > /dev/null && echo $SIMGPU_CARDS", program.display());
    let cards = succeed(simgpu().args(["sh", "-c", &script]));
    assert!(cards.contains("simgpu-cards-"));
    assert!(!std::path::Path::new(cards.trim()).exists());
    // AND also when it was killed, once another invocation has used cards.
    let script = format!("SIMGPU_HANG_SYNC=1 timeout -s KILL 1 {}; echo $SIMGPU_CARDS", program.display());
    let cards = succeed(simgpu().args(["sh", "-c", &script]));
    let cards = cards.lines().last().unwrap_or_default();
    assert!(std::path::Path::new(cards).exists());
    succeed(simgpu().arg(&program));
    assert!(!std::path::Path::new(cards).exists());
}
