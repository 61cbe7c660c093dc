//! `memlab offload`, `restore`, `limit` and `ps` on fake processes.

use std::process::Output;
use std::sync::atomic::Ordering;

use crate::common::child::{becomes_true, output, start};
use crate::common::process::{Movable, Runtime};
use crate::common::{GIB, MIB, Story, trained};
use memlab_base::text::is_unsafe;
use serde_json::{Value, json};

/// Larger than any real process id.
const PID: u32 = 4_200_101;

/// The exit code, standard output and standard error.
fn ended(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn memlab(runtime: &Runtime, line: &str) -> (Option<i32>, String, String) {
    ended(&output(&mut runtime.memlab(&line.split_whitespace().collect::<Vec<_>>())))
}

/// Returns the state of the process in `memlab ps`.
///
/// Other processes of this user may run too.
fn state_in_ps(runtime: &Runtime) -> String {
    let (_, out, _) = memlab(runtime, "ps --json");
    let json: Value = serde_json::from_str(&out).expect("JSON");
    let processes = json["processes"].as_array().expect("a list");
    let process = processes.iter().find(|process| process["pid"] == PID);
    process.and_then(|process| process["state"].as_str()).unwrap_or_default().to_owned()
}

#[test]
fn everything_is_offloaded_and_restored() {
    // GIVEN a process with 4 GiB
    let runtime = Runtime::new();
    let requests = Movable::new(PID).listen(&runtime);
    // WHEN it is offloaded THEN the output has the amount, the speed, and the part that stays
    let (code, out, err) = memlab(&runtime, &format!("offload {PID} --timeout 5s"));
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    assert_eq!(
        out,
        "offloaded 4.00 GiB in 0.21 s (21.5 GB/s); 18.0 MiB that cannot be moved stay on the device, and so does the CUDA context\n"
    );
    // AND ps shows it
    assert_eq!(state_in_ps(&runtime), "offloaded 4.00 GiB");
    // WHEN it is restored THEN the output reports that
    let (code, out, _) = memlab(&runtime, &format!("restore {PID} --free-host"));
    assert_eq!((code, out.as_str()), (Some(0), "restored 4.00 GiB in 0.21 s (21.5 GB/s)\n"));
    // AND the requests are the documented ones
    assert_eq!(
        requests.all(),
        [
            json!({ "command": "offload", "timeout_ms": 5000 }),
            json!({ "command": "restore", "timeout_ms": 30_000, "free_host": true }),
        ]
    );
    assert_eq!(state_in_ps(&runtime), "recording");
}

#[test]
fn the_outcome_is_available_as_json() {
    let runtime = Runtime::new();
    let _requests = Movable { note: Some("2 ranges were left".into()), ..Movable::new(PID) }.listen(&runtime);
    let (code, out, err) = memlab(&runtime, &format!("offload {PID} --json"));
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let json: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(json["operation"]["phase"], "done");
    assert_eq!(json["operation"]["note"], "2 ranges were left");
    assert_eq!((&json["move"]["host_bytes"], &json["pid"]), (&json!(4 * GIB), &json!(PID)));
    // AND ps has the same
    let json: Value = serde_json::from_str(&memlab(&runtime, "ps --json").1).expect("JSON");
    let processes = json["processes"].as_array().expect("a list");
    let process = processes.iter().find(|process| process["pid"] == PID).expect("the process");
    assert_eq!((&process["move"]["state"], &process["state"]), (&json!("offloaded"), &json!("offloaded 4.00 GiB")));
    assert_eq!((&process["move"]["operation"]["id"], &process["limits"]), (&json!(1), &json!([])));
}

#[test]
fn a_failure_has_a_reason_and_changes_nothing() {
    let runtime = Runtime::new();
    let failures = vec![("64 GiB of host memory are needed and 3 are free\u{1b}[2J: free some".to_owned(), false)];
    let _requests = Movable { failures, ..Movable::new(PID) }.listen(&runtime);
    let (code, out, err) = memlab(&runtime, &format!("offload {PID}"));
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert_eq!(
        err,
        format!(
            "memlab: train.py (pid {PID}): offloading failed: 64 GiB of host memory are needed and 3 are free\u{fffd}[2J: free some\n"
        )
    );
}

#[test]
fn a_refusal_is_passed_on() {
    let runtime = Runtime::new();
    let refusal = Some("operation 3 runs: wait for it".to_owned());
    let _requests = Movable { refusal, ..Movable::new(PID) }.listen(&runtime);
    for command in ["offload", "restore"] {
        let (code, out, err) = memlab(&runtime, &format!("{command} {PID}"));
        assert_eq!((code, out.as_str()), (Some(2), ""));
        assert_eq!(err, format!("memlab: process {PID} refuses: operation 3 runs: wait for it\n"));
    }
}

#[test]
fn ctrl_c_detaches_and_the_operation_completes() {
    // GIVEN a slow operation
    let runtime = Runtime::new();
    let process = Movable::new(PID);
    let go_on = process.go_on.clone();
    go_on.store(false, Ordering::Relaxed);
    let requests = process.listen(&runtime);
    let mut command = runtime.memlab(&["offload", &PID.to_string()]);
    let (child, _watchdog) = start(command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()));
    assert!(becomes_true(|| requests.count("status") >= 4));
    // WHEN Ctrl-C is pressed
    // SAFETY: a signal to a child of this test that was not waited for.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    let (code, out, err) = ended(&child.wait_with_output().expect("it ends"));
    // THEN memlab reports that the operation continues, and it does
    assert_eq!((code, out.as_str()), (Some(130), ""));
    assert!(err.contains("detached: the operation continues in train.py"), "{err}");
    assert_eq!(state_in_ps(&runtime), "offloading 33 %");
    go_on.store(true, Ordering::Relaxed);
    assert!(becomes_true(|| state_in_ps(&runtime) == "offloaded 4.00 GiB"));
    assert_eq!(requests.count("offload"), 1);
}

#[test]
fn restore_waits_for_room_on_request() {
    // GIVEN a device that is full twice
    let full = || vec![("cuda:0 lacks 2 GiB: free some".to_owned(), true); 2];
    let offloaded = |failures| Movable {
        failures,
        state: "offloaded".into(),
        device_bytes: 0,
        host_bytes: 4 * GIB,
        ..Movable::new(PID)
    };
    let runtime = Runtime::new();
    let requests = offloaded(full()).listen(&runtime);
    // WHEN it is restored THEN that fails; with --wait, memlab prints the reason once and retries until the device has room
    let (code, _, err) = memlab(&runtime, &format!("restore {PID}"));
    assert_eq!(code, Some(1));
    assert!(err.contains("lacks 2 GiB") && !err.contains("retrying until"), "{err}");
    let (code, out, err) = memlab(&runtime, &format!("restore {PID} --wait --json"));
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(serde_json::from_str::<Value>(&out).expect("one JSON")["operation"]["phase"], "done");
    assert_eq!((err.matches("lacks 2 GiB").count(), err.matches("retrying until").count()), (1, 1), "{err}");
    assert_eq!(requests.count("restore"), 3);
    // AND another failure is not retried
    let runtime = Runtime::new();
    let requests = offloaded(vec![("the copy failed".into(), false)]).listen(&runtime);
    assert_eq!(memlab(&runtime, &format!("restore {PID} --wait")).0, Some(1));
    assert_eq!(requests.count("restore"), 1);
}

#[test]
fn ctrl_c_cancels_waiting_for_room() {
    let runtime = Runtime::new();
    let failures = vec![("full".to_owned(), true); 1000];
    let requests = Movable { failures, state: "offloaded".into(), ..Movable::new(PID) }.listen(&runtime);
    let mut command = runtime.memlab(&["restore", &PID.to_string(), "--wait"]);
    let (child, _watchdog) = start(command.stderr(std::process::Stdio::piped()));
    assert!(becomes_true(|| requests.count("restore") >= 2));
    // SAFETY: a signal to a child of this test that was not waited for.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    let (code, _, err) = ended(&child.wait_with_output().expect("it ends"));
    assert_eq!(code, Some(130));
    assert!(err.contains("stopped waiting") || err.contains("detached"), "{err}");
}

#[test]
fn limits_are_set_shown_and_removed() {
    let runtime = Runtime::new();
    let requests = Movable::new(PID).listen(&runtime);
    let (code, out, _) = memlab(&runtime, &format!("limit {PID}"));
    assert_eq!(code, Some(0));
    assert_eq!(out, format!("train.py (pid {PID}) has no limit: set one with `memlab limit {PID} 8GiB`\n"));
    let (code, out, err) = memlab(&runtime, &format!("limit {PID} 8GiB --device 1 --on-limit spill"));
    assert_eq!(code, Some(0), "{err}");
    assert!(out.starts_with("cuda:1: limit 8.00 GiB, 4.00 GiB counted, 0 B spilled"), "{out}");
    assert_eq!(memlab(&runtime, &format!("limit {PID} off")).0, Some(0));
    assert_eq!(
        requests.all(),
        [
            json!({ "command": "limit", "device": 1, "bytes": 8 * GIB, "on_limit": "spill" }),
            json!({ "command": "limit", "device": null, "bytes": null }),
        ]
    );
    for (line, words) in [
        (format!("limit {PID} much"), "is not a size"),
        (format!("limit {PID} 0GiB"), "no program runs"),
        (format!("limit {PID} --on-limit spill"), "required"),
        ("run --on-limit spill -- true".to_owned(), "--limit"),
        ("run --limit 0:1GiB,0:2GiB -- true".to_owned(), "two limits"),
        (format!("offload {PID} --timeout soon"), "30s"),
    ] {
        let (code, _, err) = memlab(&runtime, &line);
        assert_eq!(code, Some(2), "{line}: {err}");
        assert!(err.contains(words), "{line}: {err}");
    }
}

#[test]
fn an_older_memlab_is_recognized() {
    // GIVEN a process whose status has no `move`
    let runtime = Runtime::new();
    let status = json!({ "ok": true, "pid": PID, "trace": "/t.jsonl", "command": ["a"], "state": "recording" });
    runtime.listen(PID, move |_| status.to_string());
    for command in ["offload", "restore", "limit"] {
        let (code, out, err) = memlab(&runtime, &format!("{command} {PID}"));
        assert_eq!((code, out.as_str()), (Some(2), ""));
        assert!(err.contains("a (pid") && err.contains("older memlab") && err.contains("restart it"), "{err}");
    }
    assert_eq!(state_in_ps(&runtime), "recording");
}

#[test]
fn unreachable_processes_are_reported() {
    let runtime = Runtime::new();
    for command in ["offload 4194304", "restore 4194304", "limit 4194304"] {
        let (code, _, err) = memlab(&runtime, command);
        assert_eq!(code, Some(2), "{err}");
        assert!(err.contains("no process 4194304"), "{err}");
    }
    let (_, _, err) = memlab(&runtime, &format!("offload {}", std::process::id()));
    assert!(err.contains("is not recorded") && err.contains("--full offloads any CUDA program"), "{err}");
}

#[test]
fn hostile_replies_are_harmless() {
    let status = |moving: Value| json!({ "ok": true, "pid": PID, "trace": "/\u{1b}[2J", "command": ["\u{1b}]0;x\u{7}"], "state": "\u{1b}[31m", "move": moving });
    let huge = json!({
        "enabled": true, "state": "offloading", "device_bytes": u64::MAX, "host_bytes": u64::MAX, "fixed_bytes": u64::MAX,
        "page_bytes": u64::MAX,
        "operation": { "id": 7, "kind": "\u{1b}[2J", "phase": "done", "done_bytes": u64::MAX, "total_bytes": 1,
                       "seconds": 1e300, "copy_seconds": 1e-300, "note": "\u{1b}[2J\u{202e}" },
    });
    let mut replies = vec![
        "nonsense".to_owned(),
        "[]".to_owned(),
        "{\"ok\":true}".to_owned(),
        "{\"ok\":false,\"error\":[1]}".to_owned(),
        "{\"ok\":false,\"error\":\"\u{1b}[2J\"}".to_owned(),
        format!("{{\"ok\":true,\"pid\":{PID},\"trace\":\"{}\"}}", "x".repeat(2 << 20)),
        status(huge).to_string(),
    ];
    for moving in [
        json!(7),
        json!({ "enabled": "yes" }),
        json!({ "enabled": true, "device_bytes": -1 }),
        json!({ "enabled": true, "device_bytes": 1e30 }),
        json!({ "enabled": true, "state": 5 }),
        json!({ "enabled": true, "operation": [] }),
        json!({ "enabled": true, "operation": { "id": "x" } }),
        json!({ "enabled": true, "operation": null }),
        json!({ "enabled": true, "operation": { "id": 6, "phase": "done" } }),
        json!({ "enabled": false, "why_not": "\u{1b}[2J\u{9b}31m\u{7f}" }),
        json!({ "enabled": true, "state": "offloaded", "operation":
                { "id": 7, "phase": "done", "error": "\u{9b}2J\u{202e}", "note": "\u{9b}2J\u{7f}" } }),
    ] {
        replies.push(status(moving).to_string());
    }
    for reply in replies {
        // GIVEN a process that answers every request with this, and starts operation 7
        let runtime = Runtime::new();
        let answer = reply.clone();
        runtime.listen(PID, move |request| match request["command"].as_str() {
            Some("status") => answer.clone(),
            _ => "{\"ok\":true,\"operation\":7}".to_owned(),
        });
        let of_process =
            ["offload", "offload --category gradient", "offload --json", "restore", "restore --json", "limit"]
                .map(|command| format!("{command} {PID}"));
        for line in of_process.into_iter().chain(["ps", "ps --json"].map(str::to_owned)) {
            // WHEN a command asks it THEN memlab ends without a panic, and prints no control characters
            let (code, out, err) = memlab(&runtime, &line);
            let short: String = reply.chars().take(200).collect();
            assert!(matches!(code, Some(0..=2)), "{line}: {short}: {code:?} {err}");
            let printed = out + &err;
            assert!(!printed.contains(|character| character != '\n' && is_unsafe(character)), "{line}: {short}");
        }
    }
}

#[test]
fn a_process_that_ends_during_an_operation_is_reported() {
    let runtime = Runtime::new();
    let socket = runtime.socket(PID);
    let mut process = Movable::new(PID);
    process.go_on.store(false, Ordering::Relaxed);
    let mut left = 3;
    let mut reply = move |request: &Value| process.reply(request).to_string();
    runtime.listen(PID, move |request| {
        left -= 1;
        if left == 0 {
            std::fs::remove_file(&socket).expect("removed");
        }
        reply(request)
    });
    let (code, _, err) = memlab(&runtime, &format!("offload {PID}"));
    assert_eq!(code, Some(1));
    assert!(err.contains("ended before the operation did"), "{err}");
}

#[test]
fn ps_shows_where_memory_is() {
    // GIVEN processes in every state
    let runtime = Runtime::new();
    for (index, (state, words)) in
        [("partly_offloaded", "partly offloaded 1.20 GiB"), ("checkpointed", "checkpointed"), ("resident", "recording")]
            .into_iter()
            .enumerate()
    {
        let pid = PID + index as u32;
        let _ = Movable { state: state.into(), host_bytes: 1229 * MIB, ..Movable::new(pid) }.listen(&runtime);
        let (_, out, _) = memlab(&runtime, "ps");
        let row = out.lines().find(|line| line.contains(&pid.to_string())).expect("a row");
        assert!(row.contains(words), "{row}");
    }
}

#[test]
fn categories_and_layers_can_be_moved() {
    // GIVEN a process with a trace: parameters of 6 GiB from the start of a segment, activations' workspaces, state
    let runtime = Runtime::new();
    let trace = runtime.path().join("run.jsonl");
    std::fs::write(&trace, trained(2).text).expect("written");
    let note = Some("1 range is not memlab's to move: it stayed\u{1b}[2J".to_owned());
    let requests = Movable { trace, note, device_bytes: 30 * GIB, ..Movable::new(PID) }.listen(&runtime);
    // WHEN parameters of one layer are selected THEN their pages are requested, and the output describes the move
    let (code, out, err) = memlab(&runtime, &format!("offload {PID} --category parameter --layer h.1.mlp"));
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert_eq!(
        out,
        "moved 1.00 GiB (1.00 GiB of parameter in layer h.1.mlp)\n  1 range is not memlab's to move: it stayed\u{fffd}[2J\n"
    );
    let ranges = requests.all()[0]["ranges"].clone();
    assert_eq!(ranges, json!([[0x7f00_0000_0000_u64 + 2 * GIB, GIB]]));
    assert!(state_in_ps(&runtime).starts_with("partly offloaded 1.00 GiB"));
    // AND as JSON
    let (_, out, _) = memlab(&runtime, &format!("offload {PID} --layer h.2 --category optimizer-state --json"));
    let json: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(json["selection"]["bytes"], json["operations"][0]["done_bytes"]);
    // AND selections that match nothing, or are invalid, are reported
    for (line, code, words) in [
        ("--layer h.99", 1, "no memory of PyTorch's allocator matches layer h.99"),
        ("--category weights", 2, "expected one of parameter, gradient"),
        ("--layer h.1 --full", 2, "cannot be used with"),
        ("--idle never", 2, "30s"),
        ("--idle 1m --category input", 1, "nothing was moved"),
    ] {
        let (exit, _, err) = memlab(&runtime, &format!("offload {PID} {line}"));
        assert_eq!(exit, Some(code), "{line}: {err}");
        assert!(err.contains(words), "{line}: {err}");
    }
}

#[test]
fn many_ranges_take_several_requests() {
    // GIVEN a selection of every other page of 100,000
    let runtime = Runtime::new();
    let trace = runtime.path().join("run.jsonl");
    let mut story = Story::begin(PID, None);
    story.device(0, 141 * GIB);
    let mut text = story.text;
    let page = 2 * MIB;
    text += &format!(r#"["d+",1,1,0,0,{},"device","cudaMalloc","libc10_cuda.so",1,0,128]"#, 100_000 * page);
    text.push('\n');
    for index in 0..100_000 {
        text += &format!("[\"a\",2,1,0,{},{page},1,{},{}]\n", index * page, 0, if index % 2 == 0 { 64 } else { 8 });
    }
    std::fs::write(&trace, text).expect("written");
    let requests = Movable { trace, steps: 1, device_bytes: u64::MAX, ..Movable::new(PID) }.listen(&runtime);
    // WHEN it is moved THEN no request is too long, each request follows the end of the previous one, and all pages are
    // requested
    let (code, out, err) = memlab(&runtime, &format!("offload {PID} --category parameter"));
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(out, "moved 97.7 GiB (97.7 GiB of parameter)\n");
    let counts: Vec<usize> =
        requests.all().iter().map(|request| request["ranges"].as_array().map_or(0, Vec::len)).collect();
    assert_eq!(counts, [20_000, 20_000, 10_000]);
}

#[test]
fn moving_parts_requires_offload() {
    let runtime = Runtime::new();
    let why_not = Some("it was started without --offload".to_owned());
    let requests = Movable { why_not, ..Movable::new(PID) }.listen(&runtime);
    let (code, _, err) = memlab(&runtime, &format!("offload {PID} --category parameter"));
    assert_eq!((code, requests.all().len()), (Some(2), 0));
    assert!(err.contains("moves all or nothing") && err.contains("memlab run --offload"), "{err}");
}
