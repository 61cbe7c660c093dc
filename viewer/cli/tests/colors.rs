//! Colors of `memlab report`: on a terminal only.

use crate::common::child::{alone, output};
use crate::common::session::Session;
use crate::common::trained;

const REPORT: &[&str] = &["report", "{}/run.jsonl"];

/// Returns the bytes that a report writes to a terminal, for a run that ended with an out-of-memory error.
fn sent(arguments: &[&str]) -> String {
    let mut story = trained(4);
    story.out_of_memory(0);
    story.end("1", "null");
    let program = if arguments[0] == "report" { env!("CARGO_BIN_EXE_memlab") } else { arguments[0] };
    let arguments = if arguments[0] == "report" { arguments } else { &arguments[1..] };
    let session = Session::start_program(program.as_ref(), arguments, &story, |_| ());
    let raw = session.raw.clone();
    assert_eq!(session.end().0, 0);
    String::from_utf8(raw.lock().expect("no panic").clone()).expect("text")
}

#[test]
fn a_report_has_colour_on_a_terminal() {
    // GIVEN a terminal WHEN a report is printed THEN titles are bold, and errors are bold and red
    let text = sent(REPORT);
    assert!(text.contains("\u{1b}[1;31m! Out of memory\u{1b}[0m"), "{text:?}");
    assert!(text.contains("\u{1b}[1mPeak of cuda:0: 25.8 GiB"), "{text:?}");
    // AND every color ends on its line
    assert!(text.lines().all(|line| line.matches("\u{1b}[").count() % 2 == 0), "{text:?}");
    // AND the text equals the output to a pipe of the same width
    let plain = sent(&["sh", "-c", "NO_COLOR=1 exec \"$0\" report {}/run.jsonl", env!("CARGO_BIN_EXE_memlab")]);
    assert!(!plain.contains('\u{1b}') && plain.contains("! Out of memory"), "{plain:?}");
    let mut without = text;
    for code in ["[1;31m", "[1;33m", "[1m", "[2m", "[0m"] {
        without = without.replace(&format!("\u{1b}{code}"), "");
    }
    // The folders have different names.
    let until = |text: &str| text.split("All sections").next().map(str::to_owned);
    assert_eq!(until(&without), until(&plain));
}

#[test]
fn a_report_into_a_pipe_has_no_colour() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("run.jsonl"), trained(4).text).expect("written");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_memlab"));
    command.args(["report", "run.jsonl"]).current_dir(&folder).env_remove("NO_COLOR").env("TERM", "xterm-256color");
    alone(&mut command);
    let text = String::from_utf8(output(&mut command).stdout).expect("text");
    assert!(text.contains("Peak of cuda:0") && !text.contains('\u{1b}'), "{text:?}");
}
