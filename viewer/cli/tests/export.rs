//! `memlab export`: moments, devices, files and errors, on synthetic traces.
//!
//! Traces of real programs, and the readers of each format, are in `tests/see/test_export.py`.

use std::fs;
use std::ops::ControlFlow;
use std::process::{Command, Output};

use crate::common::child::{alone, output};
use memlab_base::holdings::Holdings;
use memlab_base::moment::{NamedMoment, load_at};
use memlab_trace::{Model, load_whole};
use serde_json::Value;
use tempfile::TempDir;

/// Two devices; on the second a tagged parameter, a step, scratch at the peak, an out-of-memory, and pinned memory.
const TRACE: &str = r#"{"memlab":1,"version":"0.1.0","id":"5f3c","pid":4242,"start_unix_ns":1795163951000000000,"command":["python","train.py"],"directory":"/gpt","host":"gpu1"}
{"device":0,"name":"NVIDIA H200","total_bytes":1073741824}
{"device":1,"name":"NVIDIA H200","total_bytes":1073741824}
{"software":"torch","version":"2.15.0","root":"/venv/torch"}
{"frame":1,"file":"/gpt/train.py","line":3,"function":"main"}
{"frame":2,"file":"/venv/torch/nn.py","line":9,"function":"linear"}
{"stack":1,"parent":0,"frame":1}
{"stack":2,"parent":1,"frame":2}
{"layer":1,"parent":0,"type":"GPT","name":""}
{"layer":2,"parent":1,"type":"Linear","name":null}
["a",1000000000,1,0,4096,1024,0,0,0]
["d+",2000000000,1,1,65536,2097152,"device","cudaMalloc","libc10_cuda.so",1,0,128]
["d+",2000000000,1,1,1,4096,"device","cuMemAlloc_v2","libcublas.so",1,0,0]
["d+",2000000000,1,-1,2,8192,"pinned","cudaHostAlloc","libtorch_cuda.so",1,0,0]
["a",2000000000,1,1,66560,4096,2,0,0]
["tag",2500000000,1,66560,"parameter",4096,1,"h.0.weight"]
["step",3000000000,1,0]
["a",4000000000,1,1,71680,2048,2,2,1]
["f",5000000000,1,1,71680]
["oom",6000000000,1,1,1073741824,4096,2097152,2,2]
["step",7000000000,1,1]
{"layer":2,"parent":1,"type":"Linear","name":"h.0"}
["used",8000000000,1,3000000,1073741824,2500000]
["end",9000000000,0,null]
"#;

fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.jsonl"), TRACE).unwrap();
    folder
}

fn export(folder: &TempDir, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memlab"));
    command.arg("export").args(arguments).current_dir(folder);
    alone(&mut command);
    output(&mut command)
}

fn json(folder: &TempDir, arguments: &[&str]) -> Value {
    let output = export(folder, &[&["a.jsonl", "--format", "json", "-o", "-"], arguments].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn everything_at_the_peak_as_json() {
    let value = json(&folder(), &[]);
    // GIVEN the peak of the device with the highest peak
    assert_eq!(
        value["moment"],
        serde_json::json!({"at": "peak", "time_ns": 4_000_000_000_u64, "events": 8, "steps_ended": 1})
    );
    // THEN blocks have their final category and later names
    let segment = &value["segments"][0];
    assert_eq!((&segment["address"], &segment["free_bytes"]), (&65536.into(), &(2_097_152 - 6144).into()));
    assert_eq!(
        segment["blocks"][1],
        serde_json::json!({
            "device": 1, "address": 71680, "bytes": 2048, "category": "temporary", "phase": "forward", "layer": "h.0",
            "stack": 0, "time_ns": 4_000_000_000_u64, "age_ns": 0
        })
    );
    assert_eq!(segment["blocks"][0]["age_ns"], 2_000_000_000_u64);
    assert_eq!(value["stacks"], serde_json::json!([[0, 1]]));
    assert_eq!(value["frames"][1], serde_json::json!({"file": "/gpt/train.py", "line": 3, "function": "main"}));
    assert_eq!(value["stray_blocks"][0]["stack"], Value::Null);
    // AND the sums are correct, including the context, which the driver reported later
    let categories: Vec<String> = value["categories"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| format!("{} {} {}", row["device"], row["name"].as_str().unwrap(), row["bytes"]))
        .collect();
    assert_eq!(
        categories,
        [
            "0 input 1024",
            "1 parameter 4096",
            "1 temporary 2048",
            "1 workspace 4096",
            "1 cached 2091008",
            "1 context 398752",
            "1 other_processes 500000"
        ]
    );
    assert_eq!(value["devices"][1]["used_bytes"], 3_000_000);
    let layers = value["layers"].as_array().unwrap();
    let layers: Vec<_> = layers.iter().map(|row| (&row["device"], &row["live_bytes"])).collect();
    // Outside any layer, and inside one.
    assert_eq!(layers[..2], [(&0.into(), &1024.into()), (&1.into(), &6144.into())]);
    assert_eq!(
        value["driver"][1],
        serde_json::json!({
            "device": -1, "kind": "pinned", "call": "cudaHostAlloc", "library": "libtorch_cuda.so", "live_bytes": 8192,
            "live_allocations": 1
        })
    );
    assert_eq!((&value["process"]["pid"], &value["trace"]["events"]), (&4242.into(), &13.into()));
}

#[test]
fn moments_and_devices_are_chosen() {
    let folder = folder();
    let moment = |arguments: &[&str]| {
        let value = json(&folder, arguments);
        let live: Vec<_> =
            value["devices"].as_array().unwrap().iter().map(|row| row["allocated_bytes"].as_u64().unwrap()).collect();
        (value["moment"]["events"].as_u64().unwrap(), live)
    };
    assert_eq!(moment(&["--at", "peak", "--device", "0"]), (1, vec![1024]));
    assert_eq!(moment(&["--at", "step:0"]), (7, vec![1024, 4096]));
    assert_eq!(moment(&["--at", "oom", "--device", "1"]), (10, vec![4096]));
    assert_eq!(moment(&["--at", "4.5s"]), (8, vec![1024, 6144]));
    assert_eq!(moment(&["--at", "1999ms"]), (1, vec![1024, 0]));
    assert_eq!(moment(&["--at", "end"]), (13, vec![1024, 4096]));
}

#[test]
fn live_blocks_as_csv() {
    let folder = folder();
    let output = export(&folder, &["a.jsonl", "--format", "csv", "-o", "-", "--device", "1"]);
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        "device,address,bytes,category,layer,file,line,function,allocated_at_s,stack,range\r\n\
         1,66560,4096,parameter,h.0,/gpt/train.py,3,main,2.000000000,main (/gpt/train.py:3);linear (/venv/torch/nn.py:9),\r\n\
         1,71680,2048,temporary,h.0,/gpt/train.py,3,main,4.000000000,main (/gpt/train.py:3);linear (/venv/torch/nn.py:9),\r\n"
    );
}

#[test]
fn stacks_as_speedscope() {
    let folder = folder();
    let output = export(&folder, &["a.jsonl", "--format", "speedscope", "-o", "-"]);
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        value["shared"]["frames"],
        serde_json::json!([
            {"name": "(no Python line)"},
            {"name": "main", "file": "train.py", "line": 3},
            {"name": "linear", "file": "/venv/torch/nn.py", "line": 9}
        ])
    );
    assert_eq!(
        value["profiles"][1],
        serde_json::json!({
            "type": "sampled", "name": "cuda:1 allocated at the peak", "unit": "bytes", "startValue": 0, "endValue": 6144,
            "samples": [[1, 2]], "weights": [6144]
        })
    );
    assert_eq!(value["activeProfileIndex"], 1);
}

#[test]
fn stacks_as_a_flamegraph() {
    let folder = folder();
    let picture = |arguments: &[&str]| {
        let output = export(&folder, &[&["a.jsonl", "--format", "flamegraph", "-o", "-"], arguments].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    // At the highest peak of any device, at another moment, and on another device.
    let at_peak = picture(&[]);
    assert!(at_peak.starts_with("<?xml") && at_peak.contains("train.py: cuda:1 allocated at the peak"));
    assert!(at_peak.contains("linear") && at_peak.contains("6.00 KiB"), "{at_peak}");
    let at_the_end = picture(&["--at", "end"]);
    assert!(
        at_the_end.contains("allocated at the end")
            && at_the_end.contains("4.00 KiB")
            && !at_the_end.contains("6.00 KiB")
    );
    assert!(picture(&["--device", "0"]).contains("cuda:0 allocated at the peak"));
}

#[test]
fn written_files_are_reported() {
    let folder = folder();
    for format in ["json", "csv", "flamegraph", "speedscope", "perfetto", "memory_viz"] {
        let output = export(&folder, &["a.jsonl", "--format", format, "-o", "out"]);
        assert!(output.status.success() && output.stdout.is_empty(), "{format}");
        let said = String::from_utf8(output.stderr).unwrap();
        let moment = if format == "perfetto" { "the end, after 9.00 s" } else { "the peak, after 4.00 s" };
        assert_eq!(said, format!("memlab: {moment} → out\n"));
        // AND standard output has the same bytes
        let piped = export(&folder, &["a.jsonl", "--format", format, "-o", "-"]);
        assert_eq!((fs::read(folder.path().join("out")).unwrap(), piped.stderr.len()), (piped.stdout, 0), "{format}");
    }
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 2);
}

#[test]
fn impossible_exports_are_reported() {
    let folder = folder();
    fs::write(folder.path().join("empty.jsonl"), "{\"memlab\":1,\"pid\":1}\n").unwrap();
    fs::write(folder.path().join("out"), "old").unwrap();
    for (arguments, message) in [
        (&["a.jsonl", "-o", "a.jsonl"][..], "a.jsonl: is the trace itself: name another file"),
        (&["a.jsonl", "-o", "empty.jsonl"], "empty.jsonl: is a trace: name another file"),
        (&["a.jsonl", "-o", "."], ".: is a folder: name a file in it"),
        (&["empty.jsonl", "-o", "out"], "empty.jsonl: no GPU memory was allocated in this run"),
        (&["none.jsonl", "-o", "out"], "none.jsonl: no such file"),
        (&["a.jsonl", "-o", "out", "--device", "2"], "a.jsonl: this trace has no device 2; it has 0, 1"),
        (&["a.jsonl", "-o", "out", "--at", "step:2"], "a.jsonl: this trace has no step 2: its steps are 0–1"),
        (
            &["a.jsonl", "-o", "out", "--at", "oom:2"],
            "a.jsonl: this trace has no out-of-memory error 2; it has one: oom",
        ),
        (&["a.jsonl", "-o", "out", "--at", "10s"], "a.jsonl: 10.0 s is later than the end of the trace, 9.00 s"),
    ] {
        let output = export(&folder, &[arguments, &["--format", "json"]].concat());
        assert_eq!(String::from_utf8(output.stderr).unwrap(), format!("memlab: {message}\n"));
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
    let output = export(&folder, &["a.jsonl", "--format", "json", "-o", "no/such/folder"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().starts_with("memlab: no/such/folder: cannot be written: "));
    // AND no file was changed
    assert_eq!(fs::read_to_string(folder.path().join("out")).unwrap(), "old");
    assert_eq!(fs::read_to_string(folder.path().join("a.jsonl")).unwrap(), TRACE);
}

#[test]
fn condensed_moments_are_refused() {
    let folder = folder();
    let path = folder.path().join("c.jsonl");
    let model = load_whole(&folder.path().join("a.jsonl"), &mut |_| ControlFlow::Continue(())).unwrap().model;
    let mut condensed = TRACE.split_inclusive('\n').next().unwrap().as_bytes().to_vec();
    model.write_keyframe(&mut condensed).unwrap();
    condensed.extend_from_slice(b"[\"a\",9500000000,1,1,71680,512,2,2,1]\n");
    fs::write(&path, condensed).unwrap();
    let output = export(&folder, &["c.jsonl", "--format", "json", "-o", "-"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        "memlab: c.jsonl: this trace was condensed to stay within MEMLAB_TRACE_MAX and no longer contains the peak. It is \
         complete after 9.00 s (step 1): use --at end, or a time or step after that\n"
    );
    assert!(export(&folder, &["c.jsonl", "--format", "json", "-o", "-", "--at", "end"]).status.success());
    assert!(export(&folder, &["c.jsonl", "--format", "perfetto", "-o", "-"]).status.success());
    // AND the model's figures of the peak are still exported
    for (format, total) in [("flamegraph", "6.00 KiB"), ("speedscope", "\"endValue\":6144")] {
        let output = export(&folder, &["c.jsonl", "--format", format, "-o", "-"]);
        assert!(String::from_utf8(output.stdout).unwrap().contains(total), "{format}");
    }
}

#[test]
fn omitted_events_of_a_snapshot_are_reported() {
    let folder = folder();
    let output = export(&folder, &["a.jsonl", "--format", "memory_viz", "-o", "out", "--at", "end", "--events", "3"]);
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        "memlab: the end, after 9.00 s → out\n\
         memlab: it has the latest 3 events; 4 earlier ones were left out (--events)\n"
    );
}

#[test]
fn exported_blocks_sum_to_the_models_figures() {
    let folder = folder();
    let path = folder.path().join("a.jsonl");
    let model: Model = load_whole(&path, &mut |_| ControlFlow::Continue(())).unwrap().model;
    for device in model.devices() {
        let loaded = load_at(&path, NamedMoment::Peak, Some(device.index), &mut ()).unwrap();
        assert_eq!(Holdings::at_moment(&loaded.snapshot, device.index), Holdings::at_peak(&model, &device));
        let loaded = load_at(&path, NamedMoment::End, Some(device.index), &mut ()).unwrap();
        assert_eq!(Holdings::at_moment(&loaded.snapshot, device.index), Holdings::now(&model, &device));
    }
}

#[test]
fn names_cannot_control_the_terminal_or_break_a_format() {
    // GIVEN names with control characters, quotes, separators, and a spreadsheet formula
    let folder = folder();
    let hostile = r#"=cmd|'x'!A0\u001b]0;\u0007\u202e\",\r\n;"#;
    let trace = TRACE
        .replace("\"main\"", &format!("\"{hostile}\""))
        .replace("train.py", &format!("{hostile}.py"))
        .replace("h.0", hostile);
    fs::write(folder.path().join("a.jsonl"), trace).unwrap();
    for format in ["json", "csv", "speedscope"] {
        let output = export(&folder, &["a.jsonl", "--format", format, "-o", "-"]);
        let text = String::from_utf8(output.stdout).unwrap();
        let rest = text.replace("\r\n", "");
        let harmful = rest.trim_end_matches('\n').chars().find(|character| memlab_base::text::is_unsafe(*character));
        assert_eq!(harmful, None, "{format}");
    }
    let value = json(&folder, &[]);
    assert_eq!(value["frames"][1]["function"], "=cmd|'x'!A0\u{1b}]0;\u{7}\u{202e}\",\r\n;");
}

#[test]
fn overlong_stacks_are_cut() {
    // GIVEN a trace of a hundred blocks, each allocated five thousand calls deep, with a long name for every call
    let folder = tempfile::tempdir().unwrap();
    let mut lines: Vec<String> = TRACE.lines().take(2).map(str::to_owned).collect();
    let name = "f".repeat(200);
    lines.push(format!(r#"{{"frame":1,"file":"/a.py","line":1,"function":"{name}"}}"#));
    lines.extend((1..=5000).map(|stack| format!(r#"{{"stack":{stack},"parent":{},"frame":1}}"#, stack - 1)));
    lines.extend((1..=100).map(|block| format!(r#"["a",{block},1,0,{},1024,5000,0,0]"#, block * 1024)));
    fs::write(folder.path().join("deep.jsonl"), lines.join("\n") + "\n").unwrap();
    for format in ["csv", "json", "speedscope", "flamegraph", "memory_viz", "perfetto"] {
        // WHEN it is exported
        let output = export(&folder, &["deep.jsonl", "--format", format, "-o", "out"]);
        assert!(output.status.success());
        // THEN the file size is bounded, and a note gives the reason
        let size = fs::metadata(folder.path().join("out")).unwrap().len();
        assert!(size < 5_000_000, "{format}: {size} bytes");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let note = "3,976 stacks are more than 1024 calls deep: the outermost calls are left out";
        assert_eq!(said.contains(note), format != "perfetto", "{format}: {said}");
        fs::remove_file(folder.path().join("out")).unwrap();
    }
}
