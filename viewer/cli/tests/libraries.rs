//! The scope of lines: a program whose own line only calls a library that trains, leaks and runs out of memory.

use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use crate::common::child::{alone, output};
use serde_json::Value;
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

/// `train.py:7` calls `trainer.py:50`, which keeps a loss of 8 MiB in every step, and `model.py:90` below it.
const NAMES: &str = r#"{"memlab":1,"version":"0.1.0","id":"5f3c","pid":4242,"start_unix_ns":1795163951000000000,"command":["python","train.py"],"directory":"/job","host":"gpu1"}
{"device":0,"name":"NVIDIA H200","total_bytes":1073741824}
{"software":"torch","version":"2.15.0","root":"/venv/lib/python3.11/site-packages/torch"}
{"frame":1,"file":"/job/train.py","line":7,"function":"main"}
{"frame":2,"file":"/venv/lib/python3.11/site-packages/hub/trainer.py","line":50,"function":"Trainer.train"}
{"frame":3,"file":"/venv/lib/python3.11/site-packages/hub/model.py","line":90,"function":"Block.forward"}
{"stack":1,"parent":0,"frame":1}
{"stack":2,"parent":1,"frame":2}
{"stack":3,"parent":2,"frame":3}
"#;

fn folder() -> TempDir {
    let mut trace = NAMES.to_owned();
    let mut time = 1_000_000_000_u64;
    let mut put = |event: &str| {
        time += 1_000_000;
        let _ = writeln!(trace, "[{}]", event.replace('T', &time.to_string()));
    };
    let block = |index: u64| (1_u64 << 40) + index * 512 * MIB;
    put(&format!(r#""used",T,0,{},1073741824,{}"#, 900 * MIB, 800 * MIB));
    put(&format!(r#""a",T,1,0,{},{},3,0,5"#, block(0), 100 * MIB));
    for step in 0..20_u64 {
        put(&format!(r#""a",T,1,0,{},{},2,0,0"#, block(step + 1), 8 * MIB));
        put(&format!(r#""step",T,1,{step}"#));
    }
    put(&format!(r#""oom",T,1,0,{},{},{},3,0"#, 700 * MIB, 260 * MIB, 260 * MIB));
    put(r#""end",T,1,null"#);
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.jsonl"), trace).unwrap();
    folder
}

fn memlab(folder: &TempDir, arguments: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memlab"));
    command.args(arguments.split_whitespace()).current_dir(folder);
    alone(&mut command);
    let output = output(&mut command);
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The part of a text between two texts, with white space collapsed.
fn part(text: &str, from: &str, to: &str) -> String {
    let part = text.split_once(from).unwrap_or_else(|| panic!("{from}: {text}")).1;
    part.split_once(to).map_or(part, |(part, _)| part).split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn findings_and_errors_name_the_shown_lines() {
    // GIVEN a run whose own line only calls a library
    let folder = folder();
    // WHEN it is reported THEN findings name the library's lines, and the line that called them
    let report = memlab(&folder, "report --full a.jsonl");
    let found = part(&report, "Findings", "=== Device");
    assert!(found.contains("hub/model.py:90 Block.forward requested 700 MiB"), "{found}");
    assert!(found.contains("hub/trainer.py:50 Trainer.train allocates it. It holds"), "{found}");
    assert!(found.contains("in a call from train.py:7 main"), "{found}");
    let error = part(&report, "OUT OF MEMORY", "Peak:");
    assert!(error.contains("requested by hub/model.py:90"), "{error}");
    assert!(error.contains("160 MiB line") && error.contains("hub/trainer.py:50 Trainer.train"), "{error}");
    assert!(error.contains("100 MiB line") && !error.contains("train.py:7"), "{error}");
    let advice = part(&error, "What to do next", "Peak:");
    assert!(advice.contains("hub/trainer.py:50 Trainer.train holds 8.00 MiB more"), "{advice}");
    // AND so does the page
    let page = memlab(&folder, "report a.jsonl --html -");
    let verdict = part(&page, "aria-label=\"findings\"", "</section>");
    assert!(verdict.contains("hub/model.py:90") && verdict.contains("hub/trainer.py:50"), "{verdict}");
    // AND if the user's lines are requested, they are named everywhere
    let users = memlab(&folder, "report --libraries=never a.jsonl");
    assert!(!users.contains("hub/") && users.contains("train.py:7 main requested 700 MiB"), "{users}");
    assert!(users.contains("train.py:7 main holds 8.00 MiB more"), "{users}");
    // AND JSON has both lines for an error
    let json: Value = serde_json::from_str(&memlab(&folder, "report --json a.jsonl")).unwrap();
    let oom = &json["ooms"][0];
    assert_eq!((&oom["line"], &oom["library_line"]["line"]), (&7.into(), &90.into()));
    assert_eq!(oom["held_by_lines"][0]["bytes"], 260 * MIB);
    let library = &oom["held_by_library_lines"][0];
    assert_eq!((&library["bytes"], &library["line"]), (&(160 * MIB).into(), &50.into()));
}

#[test]
fn moments_exports_and_comparisons_show_the_lines_of_the_report() {
    let folder = folder();
    let both = |command: &str, library: &str, user: &str| {
        for (option, expected, unexpected) in
            [("", library, user), ("--libraries", library, user), ("--libraries=never", user, library)]
        {
            let text = memlab(&folder, &format!("{command} {option}"));
            assert!(text.contains(expected) && !text.contains(unexpected), "{command} {option}: {text}");
        }
    };
    both("report a.jsonl@step:3", "hub/trainer.py:50  Trainer.train", "train.py:7  main");
    both("export a.jsonl --format csv -o -", "hub/trainer.py,50,", "/job/train.py,7,");
    both("diff a.jsonl@step:3 a.jsonl@step:9", "hub/trainer.py:50", "train.py:7");
    // AND JSON has both, and names the scope of the shown lines
    for (command, shown) in [
        ("export a.jsonl --format json -o -", "library_lines"),
        ("diff --json a.jsonl@step:3 a.jsonl@step:9", "library_lines"),
        ("diff --json --libraries=never a.jsonl@step:3 a.jsonl@step:9", "lines"),
    ] {
        let json: Value = serde_json::from_str(&memlab(&folder, command)).unwrap();
        assert_eq!(json["lines_shown"], shown, "{command}");
        let file = |rows: &str| json[rows][0]["file"].as_str().unwrap().to_owned();
        assert!(file("lines").ends_with("train.py") && file("library_lines").ends_with("hub/trainer.py"), "{command}");
    }
}
