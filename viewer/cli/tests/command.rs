//! The command in scripts: exit codes, signals, input and output, errors, `ps`.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::common::child::{LIMIT, PATIENCE, alone, output, output_within, start};
use crate::common::trained;
use memlab_base::text::is_unsafe;
use memlab_units::format::duration;
use tempfile::TempDir;

/// `memlab` in a separate folder, with a harmless library to preload.
fn memlab(folder: &TempDir, arguments: &[&str]) -> Command {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux has it");
    let library = maps.split_whitespace().find(|word| word.contains("/libc.so") || word.contains("/libc-"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_memlab"));
    command.args(arguments).current_dir(folder).env("MEMLAB_LIB", library.expect("this test uses the C library"));
    for name in ["LD_PRELOAD", "MEMLAB_OUTPUT", "XDG_RUNTIME_DIR", "NO_COLOR"] {
        command.env_remove(name);
    }
    alone(&mut command);
    command
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

fn run(folder: &TempDir, script: &str) -> Output {
    output(&mut memlab(folder, &["run", "--", "sh", "-c", script]))
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Shell lines that write a trace as libmemlab.so would: `$trace` is its path.
const TRACED: &str = r#"
trace=$(echo "$MEMLAB_OUTPUT" | sed "s/%n/sh/; s/%p/$$/; s/%r/0/")
{
  echo "{\"memlab\":1,\"id\":\"a$$\",\"pid\":$$,\"parent_pid\":$PPID,\"start_unix_ns\":$(date +%s%N),\"command\":[\"python\",\"train.py\"],\"directory\":\"/gpt\"}"
  echo '{"device":0,"name":"NVIDIA H200","total_bytes":151397597184,"bus_id":null}'
  echo '{"frame":1,"file":"/gpt/train.py","line":31,"function":"main"}'
  echo '{"stack":1,"parent":0,"frame":1}'
  echo '["d+",1000000,1,0,4096,3221225472,"device","cudaMalloc","libc10_cuda.so",1,0,128]'
  echo '["a",2000000,1,0,4096,2147483648,1,0,64]'
} > "$trace"
"#;

#[test]
fn the_exit_code_is_that_of_the_program() {
    let folder = folder();
    for code in [0, 7, 255] {
        assert_eq!(run(&folder, &format!("exit {code}")).status.code(), Some(code));
    }
}

#[test]
fn a_signal_that_ends_the_program_ends_memlab() {
    let folder = folder();
    for signal in [libc::SIGTERM, libc::SIGKILL, libc::SIGSEGV, libc::SIGINT] {
        let output = run(&folder, &format!("kill -{signal} $$"));
        assert_eq!(output.status.signal(), Some(signal), "{}", errors(&output));
    }
}

#[test]
fn input_and_output_are_unchanged() {
    // GIVEN a program that copies its input, and writes to standard error
    let folder = folder();
    let mut command = memlab(&folder, &["run", "--", "sh", "-c", "cat; echo oops >&2"]);
    let (mut child, _watchdog) = start(command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()));
    child.stdin.take().expect("piped").write_all(b"\0binary\xff\n").expect("written");
    let output = child.wait_with_output().expect("it ends");
    // THEN standard output is the program's, byte for byte, and standard error begins with the program's
    assert_eq!(output.stdout, b"\0binary\xff\n");
    let text = errors(&output);
    assert!(text.starts_with("oops\nmemlab: ") && text.contains("no trace was written"), "{text}");
    // AND no trace is left behind
    assert_eq!(std::fs::read_dir(folder.path()).expect("readable").count(), 0);
}

#[test]
fn the_program_sees_its_environment_and_the_preload() {
    let folder = folder();
    let script = "echo $LD_PRELOAD; echo $MEMLAB_OUTPUT; echo $A";
    let mut command = memlab(&folder, &["run", "-o", "x-%p.jsonl", "--", "sh", "-c", script]);
    let output = output(command.env("LD_PRELOAD", "/no/such.so").env("A", "b"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].contains("libc") && lines[0].ends_with(":/no/such.so"), "{lines:?}");
    let here = folder.path().canonicalize().expect("it exists");
    assert_eq!(Path::new(lines[1]), here.join("x-%p.jsonl"));
    assert_eq!(lines[2], "b");
}

#[test]
fn signals_are_passed_on() {
    for (signal, name) in
        [(libc::SIGINT, "INT"), (libc::SIGTERM, "TERM"), (libc::SIGHUP, "HUP"), (libc::SIGUSR1, "USR1")]
    {
        // GIVEN a program that reports when it is ready
        let folder = folder();
        let script = format!("trap 'echo got {name}; exit 5' {name}; echo ready; while :; do sleep 0.05; done");
        let (mut child, _watchdog) = start(memlab(&folder, &["run", "--", "sh", "-c", &script]).stdout(Stdio::piped()));
        let mut output = BufReader::new(child.stdout.take().expect("piped")).lines();
        assert_eq!(output.next().expect("a line").expect("text"), "ready");
        // WHEN memlab gets a signal
        // SAFETY: a signal to a child of this test that was not waited for.
        unsafe { libc::kill(child.id() as i32, signal) };
        // THEN the program gets it once
        let rest: Vec<String> = output.map(|line| line.expect("text")).collect();
        assert_eq!(rest, [format!("got {name}")]);
        assert_eq!(child.wait().expect("it ends").code(), Some(5));
    }
}

#[test]
fn ignored_signals_of_the_parent_do_not_matter() {
    // GIVEN tests of signals that are started as by nohup, or in the background of a shell
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' INT QUIT HUP; exec \"$@\"", "sh"]).arg(std::env::current_exe().expect("it runs"));
    command.args(["--exact", "command::a_signal_that_ends_the_program_ends_memlab", "command::signals_are_passed_on"]);
    alone(&mut command);
    // THEN they pass
    let output = output_within(&mut command, LIMIT + Duration::from_secs(10));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn a_stopped_program_stops_memlab_and_both_continue() {
    let folder = folder();
    let (mut child, _watchdog) = start(&mut memlab(&folder, &["run", "--", "sh", "-c", "kill -STOP $$; exit 4"]));
    let pid = child.id() as i32;
    let mut status = 0;
    // SAFETY: waits for a child of this test; the status outlives the call.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, libc::WUNTRACED) }, pid);
    assert!(libc::WIFSTOPPED(status), "{status:#x}");
    // SAFETY: a signal to a child of this test that has not ended.
    unsafe { libc::kill(pid, libc::SIGCONT) };
    assert_eq!(child.wait().expect("it ends").code(), Some(4));
}

#[test]
fn a_stopped_program_that_is_continued_by_its_number_goes_on_with_memlab() {
    // GIVEN a program that stops, and memlab with it
    let folder = folder();
    let number = folder.path().join("number");
    let script = format!("echo $$ > {}; kill -STOP $$; exit 4", number.display());
    let (mut child, _watchdog) = start(&mut memlab(&folder, &["run", "--", "sh", "-c", &script]));
    let mut status = 0;
    // SAFETY: waits for a child of this test; the status outlives the call.
    assert!(unsafe { libc::waitpid(child.id() as i32, &mut status, libc::WUNTRACED) } > 0);
    assert!(libc::WIFSTOPPED(status), "{status:#x}");
    // WHEN the program alone is continued; THEN memlab ends with it
    let program: i32 = std::fs::read_to_string(number).expect("written").trim().parse().expect("a number");
    // SAFETY: a signal to a program of this test that has not ended.
    unsafe { libc::kill(program, libc::SIGCONT) };
    assert_eq!(child.wait().expect("it ends").code(), Some(4));
}

#[test]
fn the_summary_has_the_peak_and_its_line() {
    let folder = folder();
    let output = run(&folder, &format!("{TRACED} echo '[\"end\",3000000,0,null]' >> \"$trace\""));
    let text = errors(&output);
    assert!(text.contains("peak 2.00 GiB allocated at 2 ms; at most 3.00 GiB reserved"), "{text}");
    assert!(text.contains("2.00 GiB  train.py:31 main") && text.contains("memlab report memlab-sh-"), "{text}");
    assert!(text.lines().count() <= 8, "{text}");
}

#[test]
fn the_trace_of_a_killed_program_has_the_signal() {
    // GIVEN a traced program that was killed with a preallocated trace file
    let folder = folder();
    let output = run(&folder, &format!("{TRACED} head -c 100000 /dev/zero >> \"$trace\"; kill -9 $$"));
    assert_eq!(output.status.signal(), Some(9));
    // THEN the trace ends with the signal, and the summary names it
    let text = errors(&output);
    assert!(text.contains("killed by SIGKILL"), "{text}");
    let trace = std::fs::read_dir(folder.path()).expect("readable").next().expect("a trace").expect("readable").path();
    let content = std::fs::read_to_string(trace).expect("text");
    assert!(content.ends_with(",null,9]\n") && !content.contains('\0'), "{content}");
}

#[test]
fn traces_of_children_are_in_the_summary() {
    let folder = folder();
    let script = TRACED.replace('\'', r"'\''");
    let output = run(&folder, &format!("sh -c '{script}' & sh -c '{script}' & wait"));
    let text = errors(&output);
    assert_eq!(text.matches("peak 2.00 GiB").count(), 2, "{text}");
}

#[test]
fn an_untraced_program_is_not_reported_as_unused() {
    let folder = folder();
    let output = output(memlab(&folder, &["run", "--", "true"]).env("MEMLAB", "0"));
    assert_eq!(errors(&output), "memlab: true: exit code 0; MEMLAB=0 switches memlab off; no trace was written\n");
}

#[test]
fn a_cut_trace_gets_an_end_and_the_summary_the_exit_code() {
    // GIVEN a program whose trace stops early, within nanoseconds, as on a full disk, and that ends normally later
    let folder = folder();
    let output = run(&folder, &format!("{} exit 7", TRACED.replace("000000,1,0,4096,", ",1,0,4096,")));
    assert_eq!(output.status.code(), Some(7));
    // THEN the trace has an end
    let trace = std::fs::read_dir(folder.path()).expect("readable").next().expect("a trace").expect("readable").path();
    let trace = std::fs::read_to_string(trace).expect("text");
    let end = trace.lines().last().expect("an end");
    let time = end.strip_prefix("[\"end\",").and_then(|end| end.strip_suffix(",7,null]")).expect(end);
    let time: u64 = time.parse().expect("nanoseconds");
    // AND the summary has its exit code, the duration until then, and a line on the cut trace
    let text = errors(&output);
    assert!(text.contains(&format!(") {}, exit code 7", duration(time))), "{time}: {text}");
    assert!(text.contains("the trace was cut") && !text.contains("end not recorded"), "{text}");
    assert!(time > 1000, "{time}");
}

#[test]
fn several_traces_are_reported_together() {
    // GIVEN a job of two processes
    let folder = folder();
    let script = TRACED.replace('\'', r"'\''");
    let text = errors(&run(&folder, &format!("sh -c '{script}' & sh -c '{script}' & wait")));
    // THEN the summary's hint names both, and can be run as printed
    let hint = text.lines().find_map(|line| line.strip_prefix("  report:     memlab ")).expect("a hint");
    let arguments: Vec<&str> = hint.split(' ').collect();
    assert_eq!(arguments.len(), 3, "{hint}");
    let reports = output(&mut memlab(&folder, &arguments));
    assert_eq!(String::from_utf8_lossy(&reports.stdout).matches("memlab report: train.py").count(), 2);
    // AND as JSON they are an array; a single one is an object
    let json = |arguments: &[&str]| -> serde_json::Value {
        serde_json::from_slice(&output(&mut memlab(&folder, arguments)).stdout).expect("JSON")
    };
    assert_eq!(json(&[&arguments[..], &["--json"]].concat()).as_array().map(Vec::len), Some(2));
    assert!(json(&[arguments[0], arguments[1], "--json"]).is_object());
    // AND if one cannot be read, none is printed
    let (code, text) = refusal(&folder, &[arguments[0], arguments[1], "missing.jsonl"]);
    assert!(code == 2 && text.contains("missing.jsonl"), "{text}");
}

#[test]
fn a_program_without_pytorch_is_summarized_by_its_used_memory() {
    let folder = folder();
    let script = TRACED.replace("libc10_cuda.so\",1,0,128", "saxpy\",0,0,0");
    let script = script.lines().filter(|line| !line.contains("[\"a\"")).collect::<Vec<_>>().join("\n");
    let text = errors(&run(&folder, &format!("{script}\necho '[\"end\",3000000,0,null]' >> \"$trace\"")));
    assert!(text.contains("peak 3.00 GiB in use of 141 GiB at 1 ms") && !text.contains("allocated at"), "{text}");
}

/// The exit code and the error message of memlab.
fn refusal(folder: &TempDir, arguments: &[&str]) -> (i32, String) {
    let output = output(&mut memlab(folder, arguments));
    assert_eq!(output.stdout, b"", "errors go to standard error");
    let text = errors(&output).replace(&*folder.path().to_string_lossy(), "FOLDER");
    (output.status.code().unwrap_or(-1), text)
}

#[test]
fn impossible_runs_are_refused_before_they_start() {
    let folder = folder();
    std::fs::write(folder.path().join("train.py"), "").expect("written");
    for (arguments, code, words) in [
        (&["run"][..], 2, "CMD"),
        (&["run", "--", "no-such-program"], 127, "no such program in PATH: check the spelling"),
        (&["run", "--", "train.py"], 127, "memlab run -- python train.py"),
        (&["run", "--", "./train.py"], 126, "not executable"),
        (&["run", "-o", "missing/deep/x.jsonl", "--", "true"], 2, "mkdir -p FOLDER/missing/deep"),
        (&["run", "-o", "train.py/x.jsonl", "--", "true"], 2, "not a folder"),
        (&["run", "--live", "--", "true"], 2, "needs a terminal"),
        (&["view", "missing.jsonl"], 2, "missing.jsonl"),
        (&["report", "missing.jsonl"], 2, "missing.jsonl"),
        (&["view", "train.py"], 2, "empty"),
        (&["view", "--size", "0x0", "train.py"], 2, "120x40"),
        (&["top", "4194305"], 2, "no process 4194305"),
        (&["top", "1"], 2, "process 1"),
    ] {
        let (exit, text) = refusal(&folder, arguments);
        assert_eq!(exit, code, "{arguments:?}: {text}");
        assert!(text.contains(words), "{arguments:?}: {text}");
        assert!(text.matches("No such file").count() <= 1, "printed twice: {text}");
    }
    let output = output(memlab(&folder, &["run", "--", "true"]).env("MEMLAB_LIB", "/no/lib.so"));
    assert_eq!(output.status.code(), Some(2));
    assert!(errors(&output).contains("MEMLAB_LIB=/no/lib.so"), "{}", errors(&output));
}

#[test]
fn files_that_are_not_traces_are_refused() {
    let folder = folder();
    for (name, content, words) in [
        ("text.jsonl", "hello\nworld\n", "not a memlab trace"),
        ("json.jsonl", "{\"a\":1}\n", "not a memlab trace"),
        ("newer.jsonl", "{\"memlab\":999,\"pid\":1}\n", "upgrade memlab"),
    ] {
        std::fs::write(folder.path().join(name), content).expect("written");
        let (exit, text) = refusal(&folder, &["view", "--once", name]);
        assert_eq!(exit, 2, "{name}: {text}");
        assert!(text.contains(words) && text.contains(name), "{name}: {text}");
    }
}

#[test]
fn damaged_traces_are_shown_without_the_damaged_lines() {
    // GIVEN a trace with garbled lines, truncated in the middle of its last
    let folder = folder();
    let mut text = trained(2).text;
    text.insert_str(text.find("[\"a\"").expect("an event"), "garbage\n[\"a\",x]\n");
    text.truncate(text.len() - 9);
    std::fs::write(folder.path().join("t.jsonl"), text).expect("written");
    // WHEN it is shown THEN the readable part is shown, and the other lines are counted
    let output = output(&mut memlab(&folder, &["view", "--once", "--size", "100x30", "t.jsonl"]));
    let screen = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(screen.contains("2 unreadable lines skipped") && screen.contains("train.py"), "{screen}");
}

#[test]
fn one_picture_as_text_and_as_svg() {
    let folder = folder();
    let mut story = trained(3);
    story.end("0", "null");
    std::fs::write(folder.path().join("t.jsonl"), story.text).expect("written");
    for screen in ["overview", "lines", "layers"] {
        let arguments = ["view", "t.jsonl", "--once", "--size", "90x30", "--screen", screen];
        let output = output(memlab(&folder, &arguments).env("LANG", "C.UTF-8"));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(text.lines().count(), 30, "{text}");
        assert!(!text.contains('\x1b') && text.contains("train.py"), "{text}");
    }
    let output = output(&mut memlab(&folder, &["view", "t.jsonl", "--svg", "t.svg"]));
    assert!(output.status.success(), "{}", errors(&output));
    let svg = std::fs::read_to_string(folder.path().join("t.svg")).expect("written");
    assert!(svg.starts_with("<svg") && svg.contains("train_one_epoch") && svg.ends_with("</svg>\n"));
}

/// A folder of sockets, as `$XDG_RUNTIME_DIR`.
fn runtime() -> (TempDir, std::path::PathBuf) {
    let runtime = folder();
    let sockets = runtime.path().join("memlab");
    std::fs::create_dir(&sockets).expect("made");
    std::fs::set_permissions(&sockets, std::fs::Permissions::from_mode(0o700)).expect("set");
    (runtime, sockets)
}

/// Answers every request on a socket with `reply`.
fn answer(socket: &Path, reply: String) {
    let listener = UnixListener::bind(socket).expect("bound");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut request = String::new();
            BufReader::new(&stream).read_line(&mut request).expect("a request");
            assert_eq!(request, "{\"command\":\"status\"}\n");
            let _ = (&stream).write_all(reply.as_bytes());
        }
    });
}

#[test]
fn ps_lists_processes_that_answer() {
    // GIVEN a process that answers, one that ended, one that sends invalid replies, and one that refuses
    let folder = folder();
    let trace = folder.path().join("t.jsonl");
    std::fs::write(&trace, trained(2).text).expect("written");
    let (runtime, sockets) = runtime();
    let socket = |pid: u32| sockets.join(format!("{pid}.sock"));
    answer(
        &socket(4_200_001),
        format!(
            "{{\"ok\":true,\"pid\":4200001,\"trace\":\"{}\",\"rank\":1,\"command\":[\"python\",\"t\\u001b[2J.py\"],\"state\":\"recording\",\"id\":\"x\"}}\n",
            trace.display()
        ),
    );
    drop(UnixListener::bind(socket(4_200_002)).expect("bound"));
    answer(&socket(4_200_004), "nonsense\n".into());
    answer(&socket(4_200_005), "{\"ok\":false,\"error\":\"busy\"}\n".into());
    // WHEN ps runs
    let ps = |arguments: &[&str]| {
        let output = output(memlab(&folder, arguments).env("XDG_RUNTIME_DIR", runtime.path()));
        assert!(output.status.success(), "{}", errors(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let text = ps(&["ps"]);
    // THEN the first process has its memory, and no control characters are printed
    let row = text.lines().find(|line| line.contains("4200001")).unwrap_or_else(|| panic!("{text}"));
    assert!(row.contains("cuda:0") && row.contains("18.1 GiB") && row.contains("30.0 GiB"), "{text}");
    assert!(!text.contains('\x1b') && !text.contains("4200002"), "{text}");
    // AND the socket of a dead process is removed, the others are kept
    assert!(!socket(4_200_002).exists() && socket(4_200_001).exists() && socket(4_200_004).exists());
    // AND every process that cannot be asked has a reason
    assert!(text.contains("\nprocess 4200004 cannot be asked: "), "{text}");
    assert!(text.ends_with("\nprocess 4200005 refuses: busy\n"), "{text}");
    // WHEN JSON is requested THEN the output is JSON
    let json: serde_json::Value = serde_json::from_str(&ps(&["ps", "--json"])).expect("JSON");
    let processes = json["processes"].as_array().expect("a list");
    let process = processes.iter().find(|process| process["pid"] == 4_200_001).expect("the process");
    assert_eq!(process["devices"][0]["reserved_bytes"], 30_u64 << 30);
    assert_eq!((&process["rank"], &process["state"]), (&1.into(), &"recording".into()));
}

#[test]
fn ps_does_not_wait_for_processes_that_do_not_answer() {
    // GIVEN a process that is busy, one that is in another PID namespace, and a dead one whose socket a child holds
    let folder = folder();
    let (runtime, sockets) = runtime();
    let socket = |pid: u32| sockets.join(format!("{pid}.sock"));
    let busy = std::process::id();
    let _silent = UnixListener::bind(socket(busy)).expect("bound");
    let _elsewhere = UnixListener::bind(socket(4_200_006)).expect("bound");
    let child = UnixListener::bind(socket(4_200_003)).expect("bound");
    // SAFETY: the forked process makes system calls only, and ends.
    unsafe {
        let dead = libc::fork();
        if dead == 0 {
            libc::listen(child.as_raw_fd(), 8); // It listens now.
            libc::_exit(0);
        }
        assert_eq!(libc::waitpid(dead, std::ptr::null_mut(), 0), dead);
    }
    // WHEN ps runs, with the timeouts that users get
    let output = output(memlab(&folder, &["ps"]).env("XDG_RUNTIME_DIR", runtime.path()).env_remove(PATIENCE.0));
    // THEN the first two are listed, with a reason and a remedy, and the socket of the last is removed
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && !text.contains("4200003"), "{text}");
    let problem = format!("process {busy} does not answer: it is busy, or hangs: look again later");
    assert!(text.lines().any(|line| line.contains("does not answer")) && text.contains(&problem), "{text}");
    assert!(socket(busy).exists() && socket(4_200_006).exists() && !socket(4_200_003).exists());
}

#[test]
fn folders_that_others_can_write_to_are_not_trusted() {
    let folder = folder();
    let (runtime, sockets) = runtime();
    let socket = sockets.join("4200011.sock");
    answer(&socket, "{\"ok\":true,\"pid\":4200011,\"trace\":\"/etc/passwd\"}\n".into());
    std::fs::set_permissions(&sockets, std::fs::Permissions::from_mode(0o777)).expect("set");
    let ask = |arguments: &[&str]| {
        let output = output(memlab(&folder, arguments).env("XDG_RUNTIME_DIR", runtime.path()));
        (output.status.code(), errors(&output) + &String::from_utf8_lossy(&output.stdout))
    };
    let (code, text) = ask(&["top", "4200011"]);
    assert_eq!(code, Some(2));
    assert!(text.contains("not trusted"), "{text}");
    assert!(!ask(&["ps"]).1.contains("4200011"));
}

#[test]
fn names_in_a_trace_do_not_steer_the_terminal() {
    // GIVEN a trace whose warnings, lines, layers and device clear the screen and set a title
    let folder = folder();
    let hostile = r"\u001b[2J\u001b]0;owned\u0007\u009b31m\u202eabc";
    let header = r#"{"memlab":1,"id":"a1","pid":41,"start_unix_ns":1,"directory":"/gpt","command":["python"]}"#;
    let trace = [
        header.to_owned(),
        format!(r#"{{"warning":"{hostile}"}}"#),
        format!(r#"{{"device":0,"name":"{hostile}","total_bytes":151397597184,"bus_id":null}}"#),
        format!(r#"{{"frame":1,"file":"/gpt/{hostile}.py","line":31,"function":"{hostile}"}}"#),
        r#"{"stack":1,"parent":0,"frame":1}"#.to_owned(),
        format!(r#"{{"layer":1,"parent":0,"type":"{hostile}","name":"{hostile}"}}"#),
        r#"["d+",1000000,1,0,4096,3221225472,"device","cudaMalloc","libc10_cuda.so",1,0,128]"#.to_owned(),
        r#"["a",2000000,1,0,4096,2147483648,1,1,64]"#.to_owned(),
        r#"["end",3000000,0,null]"#.to_owned(),
    ];
    let file = folder.path().join("hostile.jsonl");
    std::fs::write(&file, trace.join("\n") + "\n").expect("written");
    let file = file.to_str().expect("a name");
    for arguments in [
        vec!["plan", file],
        vec!["plan", "--json", file],
        vec!["report", file],
        vec!["report", "--at", "peak", file],
        vec!["advise", file],
        vec!["diff", file, file],
        vec!["view", "--once", file],
    ] {
        // WHEN a command prints it
        let printed = output(&mut memlab(&folder, &arguments));
        let text = String::from_utf8_lossy(&printed.stdout) + String::from_utf8_lossy(&printed.stderr);
        // THEN it shows the names, without their control characters
        assert!(text.len() > 100, "{arguments:?}: {text}");
        assert!(!text.contains(|character| character != '\n' && is_unsafe(character)), "{arguments:?}: {text}");
    }
}

/// Standard error of `memlab run` for a program in a separate folder; with a CUDA driver if `has_driver`.
fn summary(script: &str, has_driver: bool) -> String {
    let folder = folder();
    let driver = folder.path().join("driver");
    std::fs::create_dir(&driver).expect("made");
    let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux has it");
    let library = maps.split_whitespace().find(|word| word.contains("/libm.so") || word.contains("/libc.so"));
    let content = if has_driver { std::fs::read(library.expect("a library")).expect("read") } else { Vec::new() };
    std::fs::write(driver.join("libcuda.so.1"), content).expect("written");
    let mut command = memlab(&folder, &["run", "-o", "traces/t.jsonl", "--", "sh", "-c", script]);
    command.env("LD_LIBRARY_PATH", &driver);
    errors(&output(&mut command))
}

#[test]
fn the_summary_gives_the_reason_for_a_missing_trace() {
    // GIVEN programs that allocate nothing, with a driver and without one
    let none = "memlab: sh: exit code 0; no CUDA memory was allocated; no trace was written\n";
    assert_eq!(summary("true", true), none);
    let without = summary("true", false);
    let cause =
        "memlab: no trace was written: this machine has no CUDA driver, so sh allocated no CUDA memory (exit code 0). ";
    assert!(without.starts_with(cause), "{without}");
    assert!(without.contains("`memlab doctor`") && without.contains("`memlab simulate -- memlab run"), "{without}");
    // AND programs whose trace or its folder is deleted
    for (script, reason) in [
        (format!("{TRACED} rm $trace"), "its trace traces/t.jsonl was deleted"),
        (format!("{TRACED} rm -r $(dirname $trace)"), "its trace traces/t.jsonl was deleted"),
        ("rmdir $(dirname $MEMLAB_OUTPUT)".to_owned(), "the folder of its trace, traces, was deleted"),
    ] {
        // THEN the summary reports the deletion, and not that no memory was allocated
        let summary = summary(&script, true);
        assert_eq!(summary.lines().count(), 1, "{summary}");
        assert!(summary.contains(reason) && !summary.contains("no CUDA memory"), "{summary}");
    }
}

#[test]
fn a_program_that_replaces_itself_is_not_a_full_disk() {
    // GIVEN a program that stops using CUDA with an exec
    let summary = summary(&format!("{TRACED} exec true"), true);
    // THEN the summary names the exec, and does not blame the disk
    assert!(summary.contains("the program replaced itself (exec)") && !summary.contains("disk"), "{summary}");
}

#[test]
fn a_missing_program_is_named_before_anything_starts() {
    let folder = folder();
    std::fs::write(folder.path().join("train"), "print()").expect("written");
    for command in ["run", "simulate", "plan"] {
        // GIVEN no such program, a folder, and a script in place of a program
        for (program, code, reason) in [
            ("nosuch", 127, "no such program in PATH: check the spelling, or give its path".to_owned()),
            ("/etc", 126, "is a folder, not a program".to_owned()),
            ("train", 127, format!("`memlab {command} -- python train` or `memlab {command} -- ./train`")),
        ] {
            // THEN the error names the problem and the correct command
            let output = output(&mut memlab(&folder, &[command, "--", program]));
            assert_eq!(output.status.code(), Some(code), "{command}: {}", errors(&output));
            assert!(errors(&output).contains(&reason), "{command}: {}", errors(&output));
        }
    }
}
