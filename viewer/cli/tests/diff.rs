//! `memlab diff` between synthetic runs, as text and as JSON.

use std::path::Path;
use std::process::{Command, Output};

use crate::common::child::{alone, output};
use crate::common::{MIB, Story};
use serde_json::Value;
use tempfile::TempDir;

fn memlab(folder: &TempDir, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memlab"));
    command.args(arguments).current_dir(folder);
    alone(&mut command);
    output(&mut command)
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn json(folder: &TempDir, arguments: &[&str]) -> Value {
    let arguments = [&["diff", "--json"], arguments].concat();
    serde_json::from_str(&text(&memlab(folder, &arguments))).unwrap()
}

fn error(folder: &TempDir, arguments: &[&str]) -> String {
    let output = memlab(folder, arguments);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    assert!(output.stdout.is_empty());
    String::from_utf8(output.stderr).unwrap()
}

/// A line of the user's code: file, number, function, MiB held.
type Row<'a> = (&'a str, u32, &'a str, u64);

/// A run in `directory` in which each line allocates one block in its own layer, one step after each, and all but the
/// first are freed at the end.
fn run(folder: &TempDir, name: &str, directory: &str, rows: &[Row<'_>]) {
    let mut trace = format!(
        r#"{{"memlab":1,"pid":1,"command":["python","train.py"],"directory":"{directory}"}}
{{"device":0,"name":"NVIDIA H200","total_bytes":1099511627776}}
{{"layer":1,"parent":0,"type":"GPT","name":""}}
"#
    );
    let mut time = 0_u64;
    let mut event = |trace: &mut String, event: String| {
        time += 1_000_000_000;
        *trace += &event.replace('T', &time.to_string());
        trace.push('\n');
    };
    for (index, (file, line, function, mib)) in rows.iter().enumerate() {
        let id = index + 1;
        trace += &format!("{{\"frame\":{id},\"file\":\"{file}\",\"line\":{line},\"function\":\"{function}\"}}\n");
        trace += &format!("{{\"stack\":{id},\"parent\":0,\"frame\":{id}}}\n");
        trace += &format!("{{\"layer\":{},\"parent\":1,\"type\":\"Linear\",\"name\":\"h.{index}\"}}\n", id + 1);
        let address = (id as u64) << 40;
        event(&mut trace, format!(r#"["a",T,1,0,{address},{},{id},{},5]"#, mib << 20, id + 1));
        event(&mut trace, format!(r#"["step",T,1,{index}]"#));
    }
    for id in 2..=rows.len() as u64 {
        event(&mut trace, format!(r#"["f",T,1,0,{}]"#, id << 40));
    }
    std::fs::write(folder.path().join(name), trace).unwrap();
}

const TWO_RUNS: &str = "\
memlab diff
  before  a.jsonl at the peak, 3.00 s, in step 1
          train.py, cuda:0 NVIDIA H200
  after   b.jsonl at the peak, 3.00 s, in step 1
          train.py, cuda:0 NVIDIA H200

Device memory
   before     after     change
  110 MiB  40.0 MiB  -70.0 MiB  -64 %  allocated
      0 B       0 B          –         reserved
  110 MiB  40.0 MiB  -70.0 MiB  -64 %  in use

By category
   before     after     change         category
  110 MiB  40.0 MiB  -70.0 MiB  -64 %  activations

By line
   before     after     change         line
  100 MiB  30.0 MiB  -70.0 MiB  -70 %  train.py:2  forward
  1 unchanged, with 10.0 MiB

By layer (inner layers not included)
   before     after     change         layer
  100 MiB  30.0 MiB  -70.0 MiB  -70 %  h.1  Linear
  1 unchanged, with 10.0 MiB
";

/// The rows of `lines` or `layers` as `name: before → after`.
fn rows(value: &Value, name: &str) -> Vec<String> {
    let shown = |row: &Value| {
        let mib = |key: &str| row[key].as_u64().unwrap() >> 20;
        let change = row["change_bytes"].as_i64().unwrap();
        assert_eq!(change, row["after_bytes"].as_i64().unwrap() - row["before_bytes"].as_i64().unwrap());
        format!("{}: {} → {}", row[name].as_str().unwrap_or("-"), mib("before_bytes"), mib("after_bytes"))
    };
    value.as_array().unwrap().iter().map(shown).collect()
}

#[test]
fn two_runs_are_compared_at_their_peaks() {
    let folder = tempfile::tempdir().unwrap();
    run(&folder, "a.jsonl", "/gpt", &[("/gpt/train.py", 1, "main", 10), ("/gpt/train.py", 2, "forward", 100)]);
    run(&folder, "b.jsonl", "/gpt", &[("/gpt/train.py", 1, "main", 10), ("/gpt/train.py", 2, "forward", 30)]);
    let shown = text(&memlab(&folder, &["diff", "a.jsonl", "b.jsonl"]));
    assert_eq!(shown, TWO_RUNS);
    let value = json(&folder, &["a.jsonl", "b.jsonl"]);
    assert_eq!(rows(&value["totals"], "name"), ["allocated: 110 → 40", "reserved: 0 → 0", "used: 110 → 40"]);
    assert_eq!(rows(&value["categories"], "name"), ["activation: 110 → 40"]);
    assert_eq!(rows(&value["lines"], "function"), ["forward: 100 → 30", "main: 10 → 10"]);
    assert_eq!(rows(&value["layers"], "name"), ["h.1: 100 → 30", "h.0: 10 → 10"]);
    assert_eq!(value["before"]["path"], "a.jsonl");
    assert_eq!((&value["before"]["at"], &value["before"]["time_ns"]), (&"peak".into(), &3_000_000_000_u64.into()));
}

#[test]
fn moments_of_one_run_are_compared() {
    let folder = tempfile::tempdir().unwrap();
    run(
        &folder,
        "a.jsonl",
        "/gpt",
        &[("/gpt/t.py", 1, "main", 10), ("/gpt/t.py", 2, "f", 100), ("/gpt/t.py", 3, "g", 1)],
    );
    // GIVEN the end of the first step and that of the second
    let value = json(&folder, &["a.jsonl@step:0", "a.jsonl@step:1"]);
    assert_eq!(rows(&value["lines"], "function"), ["f: 0 → 100", "main: 10 → 10"]);
    assert_eq!((&value["before"]["at"], &value["after"]["at"]), (&"step:0".into(), &"step:1".into()));
    assert_eq!((&value["before"]["steps_ended"], &value["after"]["steps_ended"]), (&1.into(), &2.into()));
    // AND one moment for both, or a time for one of them
    let value = json(&folder, &["--at", "end", "a.jsonl@5.5s", "a.jsonl"]);
    assert_eq!(rows(&value["lines"], "function"), ["f: 100 → 0", "g: 1 → 0", "main: 10 → 10"]);
    // AND a run does not differ from itself
    let value = json(&folder, &["a.jsonl", "a.jsonl"]);
    assert!(value["lines"].as_array().unwrap().iter().all(|row| row["change_bytes"] == 0));
}

#[test]
fn a_file_with_an_at_in_its_name_is_that_file() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a@peak", "a@step:1", "b@x@"] {
        run(&folder, name, "/gpt", &[("/gpt/t.py", 1, "main", 10)]);
    }
    let value = json(&folder, &["a@peak", "a@step:1"]);
    assert_eq!((&value["after"]["path"], &value["after"]["at"]), (&"a@step:1".into(), &"peak".into()));
    assert_eq!(json(&folder, &["b@x@", "b@x@@end"])["after"]["at"], "end");
}

#[test]
fn lines_of_two_checkouts_are_the_same_lines() {
    let folder = tempfile::tempdir().unwrap();
    run(
        &folder,
        "a.jsonl",
        "/home/ada/gpt",
        &[
            ("/home/ada/gpt/m/a.py", 1, "f", 10),
            ("/home/ada/gpt/n/a.py", 1, "f", 40),
            ("/lib/x.py", 7, "g", 5),
            ("/old/b.py", 1, "h", 1),
        ],
    );
    run(
        &folder,
        "b.jsonl",
        "/tmp/gpt2/",
        &[
            ("/tmp/gpt2/m/a.py", 1, "f", 20),
            ("/tmp/gpt2/n/a.py", 1, "f", 45),
            ("/lib/x.py", 7, "g", 5),
            ("/new/b.py", 1, "h", 2),
        ],
    );
    let value = json(&folder, &["a.jsonl", "b.jsonl"]);
    assert_eq!(
        rows(&value["lines"], "file"),
        ["m/a.py: 10 → 20", "n/a.py: 40 → 45", "/new/b.py: 1 → 2", "/lib/x.py: 5 → 5"]
    );
    assert!(value["lines"].as_array().unwrap().iter().all(|line| line["matched"] == "same"));
}

#[test]
fn a_moved_line_is_matched_if_it_is_unambiguous() {
    let folder = tempfile::tempdir().unwrap();
    // GIVEN a comment above f, and g with two lines that both moved
    run(
        &folder,
        "a.jsonl",
        "/gpt",
        &[
            ("/gpt/a.py", 10, "f", 10),
            ("/gpt/a.py", 20, "g", 20),
            ("/gpt/a.py", 21, "g", 21),
            ("/gpt/a.py", 30, "h", 30),
        ],
    );
    run(
        &folder,
        "b.jsonl",
        "/gpt",
        &[
            ("/gpt/a.py", 11, "f", 12),
            ("/gpt/a.py", 25, "g", 20),
            ("/gpt/a.py", 26, "g", 21),
            ("/gpt/a.py", 30, "h", 30),
            ("/gpt/a.py", 31, "h", 1),
        ],
    );
    // THEN f is the same, g's lines are not matched, and the new line in h is new
    let value = json(&folder, &["a.jsonl", "b.jsonl"]);
    let lines: Vec<String> = value["lines"]
        .as_array()
        .unwrap()
        .iter()
        .map(|line| {
            format!(
                "{} {}→{} {}",
                line["function"].as_str().unwrap(),
                line["line_before"],
                line["line_after"],
                line["matched"].as_str().unwrap()
            )
        })
        .collect();
    assert_eq!(
        lines,
        [
            "g 21→null only_before",
            "g null→26 only_after",
            "g 20→null only_before",
            "g null→25 only_after",
            "f 10→11 moved",
            "h null→31 only_after",
            "h 30→30 same"
        ]
    );
    let shown = text(&memlab(&folder, &["diff", "a.jsonl", "b.jsonl"]));
    assert!(shown.contains("a.py:10 →:11  f\n"), "{shown}");
    assert!(shown.contains("  1 line moved within the same function (→)\n"), "{shown}");
}

#[test]
fn a_line_that_holds_nothing_is_not_matched_as_moved() {
    let folder = tempfile::tempdir().unwrap();
    // GIVEN a line that holds nothing at the end of the second run, and a new one beside it
    run(&folder, "a.jsonl", "/gpt", &[("/gpt/a.py", 10, "f", 10)]);
    run(&folder, "b.jsonl", "/gpt", &[("/gpt/a.py", 12, "f", 10), ("/gpt/a.py", 10, "f", 10)]);
    let value = json(&folder, &["--at", "end", "a.jsonl", "b.jsonl"]);
    assert_eq!(value["lines"][0]["matched"], "same");
    assert_eq!(value["lines"][1]["matched"], "only_after");
}

#[test]
fn several_models_are_separate() {
    let folder = tempfile::tempdir().unwrap();
    // GIVEN two models of one class, with different numbers in the other run, which has another model first
    let trace = |roots: &str, layers: [u32; 2]| {
        format!(
            "{{\"memlab\":1,\"pid\":1}}\n{roots}[\"a\",1,1,0,4096,1048576,0,{},1]\n[\"a\",2,1,0,8388608,4194304,0,{},1]\n",
            layers[0], layers[1]
        )
    };
    let root = |id: u32, class: &str| format!("{{\"layer\":{id},\"parent\":0,\"type\":\"{class}\",\"name\":\"\"}}\n");
    let write = |name: &str, text: String| std::fs::write(folder.path().join(name), text).unwrap();
    write("a.jsonl", trace(&(root(1, "GPT") + &root(2, "GPT")), [1, 2]));
    write("b.jsonl", trace(&(root(1, "Critic") + &root(5, "GPT") + &root(9, "GPT")), [5, 9]));
    let value = json(&folder, &["a.jsonl", "b.jsonl"]);
    assert_eq!(rows(&value["layers"], "root_type"), ["GPT: 4 → 4", "GPT: 1 → 1"]);
}

#[test]
fn impossible_comparisons_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    run(&folder, "a.jsonl", "/gpt", &[("/gpt/t.py", 1, "main", 10)]);
    for (arguments, message) in [
        (&["a.jsonl@step:9", "a.jsonl"][..], "memlab: a.jsonl: this trace has no step 9: its steps are 0–0\n"),
        (&["a.jsonl", "a.jsonl@oom"], "memlab: a.jsonl: this trace has no out-of-memory error: use @peak or @end\n"),
        (&["a.jsonl@99s", "a.jsonl"], "memlab: a.jsonl: 1m 39s is later than the end of the trace, 2.00 s\n"),
        (&["--device", "3", "a.jsonl", "a.jsonl"], "memlab: a.jsonl: this trace has no device 3; it has 0\n"),
        (
            &["a.jsonl@noon", "a.jsonl"],
            "memlab: a.jsonl@noon: a moment is peak, end, oom, oom:2, step:12 or a time: 12.5s, 850ms, 1m30s, 1:30\n",
        ),
        (&["none@end", "a.jsonl"], "memlab: none: no such file\n"),
        (&["none@noon", "a.jsonl"], "memlab: none@noon: no such file\n"),
    ] {
        assert_eq!(error(&folder, &[&["diff"], arguments].concat()), message, "{arguments:?}");
    }
}

#[test]
fn names_cannot_control_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let hostile = r"/gpt/\u001b[2J\u202e\n.py";
    run(&folder, "a.jsonl", r"/gpt", &[(hostile, 1, r"f\u0007", 10)]);
    run(&folder, "b.jsonl", r"/gpt", &[(hostile, 1, r"f\u0007", 11)]);
    for arguments in [&["diff", "a.jsonl", "b.jsonl"][..], &["diff", "--json", "a.jsonl", "b.jsonl"]] {
        let shown = text(&memlab(&folder, arguments));
        assert!(
            !shown.chars().any(|character| memlab_base::text::is_unsafe(character) && character != '\n'),
            "{shown:?}"
        );
    }
    assert_eq!(json(&folder, &["a.jsonl", "b.jsonl"])["lines"][0]["file"], "\u{1b}[2J\u{202e}\n.py");
}

#[test]
fn a_condensed_trace_has_its_peak() {
    let folder = tempfile::tempdir().unwrap();
    run(&folder, "a.jsonl", "/gpt", &[("/gpt/t.py", 1, "main", 10), ("/gpt/t.py", 2, "f", 100)]);
    condense(&folder, "a.jsonl", "c.jsonl");
    let value = json(&folder, &["a.jsonl", "c.jsonl"]);
    assert_eq!(rows(&value["lines"], "function"), ["f: 100 → 100", "main: 10 → 10"]);
    let message = error(&folder, &["diff", "a.jsonl@step:0", "c.jsonl@step:0"]);
    assert_eq!(
        message,
        "memlab: c.jsonl: this trace was condensed to stay within MEMLAB_TRACE_MAX and no longer contains the end of step \
         0. It is complete after 5.00 s (step 1): use --at end, or a time or step after that\n"
    );
}

/// Makes a trace begin with a keyframe of its whole content.
fn condense(folder: &TempDir, from: &str, to: &str) {
    let from: &Path = &folder.path().join(from);
    let model = memlab_trace::load_whole(from, &mut |_| std::ops::ControlFlow::Continue(())).unwrap().model;
    let mut condensed = std::fs::read(from).unwrap().split_inclusive(|byte| *byte == b'\n').next().unwrap().to_vec();
    model.write_keyframe(&mut condensed).unwrap();
    condensed.extend_from_slice(b"[\"a\",90000000000,1,0,4096,512,1,0,0]\n");
    std::fs::write(folder.path().join(to), condensed).unwrap();
}

/// A run of ten steps that each keep 64 MiB in a list, with searches after steps 3 and 9.
fn searched(folder: &TempDir) {
    let mut story = Story::begin(4242, None);
    story.device(0, 1 << 40);
    let mut kept = Vec::new();
    for step in 0..10 {
        kept.push(story.alloc(0, 64 * MIB, 2, 1, 5));
        story.end_step(step);
        story.pass(100);
        if let 3 | 9 = step {
            story.search(1 + step as u32 / 9, "history", &kept);
        }
        story.pass(100);
    }
    std::fs::write(folder.path().join("run.jsonl"), story.text).unwrap();
}

/// The part of the text about holders.
fn holders_part(folder: &TempDir, before: &str, after: &str) -> String {
    let shown = text(&memlab(folder, &["diff", before, after]));
    let part = shown.split("\n\n").find(|part| part.starts_with("Holders"));
    part.unwrap_or_default().trim_end().to_owned()
}

#[test]
fn the_holder_of_growth_has_its_bytes_at_both_moments() {
    let folder = tempfile::tempdir().unwrap();
    searched(&folder);
    // GIVEN a search near both moments
    let shown = holders_part(&folder, "run.jsonl@step:3", "run.jsonl@step:9");
    // THEN the list has its bytes at both, and its cure
    assert_eq!(
        shown,
        "\
Holders of the memory of lines that grew
   before    after    change  holder
  256 MiB  640 MiB  +384 MiB  list history (train.py:15): 10 tensors
  before  searched after step 3, at 700 ms
  after   searched after step 9, at 1.90 s
  → Releasing it frees 640 MiB. Keep numbers (.item()) or CPU copies (.cpu()) in it, or bound or clear it:
    `history.clear()`"
    );
    let value = json(&folder, &["run.jsonl@step:3", "run.jsonl@step:9"])["holders"].take();
    assert_eq!(value["search_before"]["steps_ended"], 4);
    let row = &value["rows"][0];
    assert_eq!((&row["path"][0], &row["releases"]), (&"history".into(), &(640 * MIB).into()));
    assert_eq!((&row["before_bytes"], &row["after_bytes"]), (&(256 * MIB).into(), &(640 * MIB).into()));
}

#[test]
fn a_moment_without_a_search_near_it_is_named() {
    let folder = tempfile::tempdir().unwrap();
    searched(&folder);
    // GIVEN a moment at which the lines held much less than at the nearest search
    let shown = holders_part(&folder, "run.jsonl@step:0", "run.jsonl@step:9");
    // THEN the bytes at it are unknown
    assert!(shown.contains("\n       ?  640 MiB       ?  list history"), "{shown}");
    assert!(shown.contains("\n  before  no search near the end of step 0\n"), "{shown}");
    let value = json(&folder, &["run.jsonl@step:0", "run.jsonl@step:9"])["holders"].take();
    assert_eq!((&value["search_before"], &value["rows"][0]["before_bytes"]), (&Value::Null, &Value::Null));
    // AND moments with the same nearest search do not share it
    let shown = holders_part(&folder, "run.jsonl@step:7", "run.jsonl@step:9");
    assert!(shown.contains("\n  before  no search near the end of step 7\n"), "{shown}");
    // AND nothing is reported if no line grew
    assert_eq!(holders_part(&folder, "run.jsonl@step:9", "run.jsonl@step:3"), "");
}
