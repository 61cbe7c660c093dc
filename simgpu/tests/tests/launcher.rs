//! The launcher: `memlab simulate`.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use simgpu_tests::{compile, compile_preload, libraries, run, simgpu, succeed, text};

/// SIGTERM on every Linux.
const SIGTERM: i32 = 15;

#[test]
fn the_exit_status_is_that_of_the_command() {
    // GIVEN commands that end in different ways, WHEN they run under it, THEN the exit code is theirs.
    assert_eq!(run(simgpu().args(["sh", "-c", "exit 7"])).status.code(), Some(7));
    assert_eq!(run(simgpu().args(["/no/such/command"])).status.code(), Some(127));
    // AND so is the signal: memlab replaces itself with the command.
    let mut direct = Command::new(libraries().join("memlab"));
    let output = run(direct.args(["simulate", "sh", "-c", "kill -TERM $$"]));
    assert_eq!(output.status.signal(), Some(SIGTERM));
}

#[test]
fn invalid_options_are_reported() {
    // GIVEN invalid options, WHEN memlab starts, THEN it reports the error and runs nothing.
    for (options, complaint) in [
        (vec![], "Usage"),
        (vec!["--memory", "lots", "true"], "--memory"),
        (vec!["--card", "a100", "true"], "one of a100-80gb, a100-40gb, "),
        (vec!["--devices", "0", "true"], "--devices"),
        (vec!["--devices", "17", "true"], "--devices"),
        (vec!["--fast", "true"], "Usage"),
    ] {
        let output = run(simgpu().args(&options));
        assert_eq!(output.status.code(), Some(2), "{options:?}");
        assert!(text(&output.stderr).contains(complaint), "{options:?}");
    }
    // AND missing libraries are reported.
    let output = run(simgpu().arg("true").env("SIMGPU_LIBS", "/nowhere"));
    assert!(text(&output.stderr).contains("cargo build --release"));
}

#[test]
fn the_card_file_is_removed() {
    // GIVEN a program that used the cards, WHEN it has ended, THEN the card file is gone.
    let program = compile("failures", &[]);
    let script = format!("{0} > /dev/null && {0} > /dev/null && echo $SIMGPU_CARDS", program.display());
    let cards = succeed(simgpu().args(["sh", "-c", &script]));
    assert!(cards.contains("simgpu-cards-"));
    assert!(!std::path::Path::new(cards.trim()).exists());
    // AND the file of a program that is killed in a synchronisation is removed by the next invocation that uses cards.
    // (It is in a folder of this test, because other tests use cards too.)
    let folder = libraries().join(format!("simgpu/cards-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let [killed, next] = ["killed", "next"].map(|name| folder.join(format!("simgpu-cards-{name}")));
    let clock = compile_preload("clock");
    let preload = format!("SIMGPU_HANG_SYNC=1 LD_PRELOAD={}:$LD_PRELOAD", clock.display());
    let script = format!("SIMGPU_CARDS={} {preload} {}; test $? = 137", killed.display(), program.display());
    succeed(simgpu().args(["sh", "-c", &script]));
    assert!(killed.exists());
    let script = format!("SIMGPU_CARDS={} exec {}", next.display(), program.display());
    succeed(simgpu().args(["sh", "-c", &script]));
    assert!(!killed.exists() && !next.exists());
    std::fs::remove_dir(folder).unwrap();
}
