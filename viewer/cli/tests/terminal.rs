//! The real binary in a pseudo-terminal: keys, resize, quit, signals.

use crate::common;
use std::io::Read;

use crate::common::child::{PATIENCE, Watchdog, becomes_true, start, usual_signals};
use crate::common::process::{Movable, Runtime};
use crate::common::session::{Session, harmless_library};
use crate::common::{Story, of_this_process, trained};

/// Returns true if the terminal's bytes contain these bytes.
fn contains(bytes: &[u8], needle: &[u8]) -> bool {
    bytes.windows(needle.len()).any(|window| window == needle)
}

fn finished() -> Story {
    let mut story = trained(4);
    story.end("0", "null");
    story
}

#[test]
fn keys_change_the_screen() {
    // GIVEN a finished run on the screen
    let mut session = Session::start(&["view", "{}/run.jsonl"], &finished());
    session.wait_for("Device memory");
    // WHEN keys are pressed THEN the screen follows
    session.press("2");
    session.wait_for("allocs/s");
    session.press("/mlp\r");
    session.wait_for("1 of 6");
    session.press("\x1b");
    session.wait_until("all lines", |text| !text.contains("1 of 6"));
    session.press("\t");
    session.wait_for("outermost");
    session.press("z");
    session.wait_for("attn Attention");
    session.press("?");
    session.wait_for("next screen; a screen by its number");
    session.press("x");
    session.wait_until("no help", |text| !text.contains("next screen; a screen by its number"));
    // WHEN it quits THEN the terminal is restored
    session.press("q");
    let (code, restored, _) = session.end();
    assert_eq!((code, restored), (0, true));
}

#[test]
fn advice_is_shown_over_the_screen() {
    // GIVEN a finished run on the screen
    let mut session = Session::start(&["view", "{}/run.jsonl"], &finished());
    session.wait_for("Device memory");
    // WHEN advice is requested THEN changes are tried, and their results are shown
    session.press("A");
    session.wait_for("for the peak of cuda:0");
    // AND any other key leads back
    session.press("x");
    session.wait_until("no advice", |text| !text.contains("for the peak of cuda:0"));
    session.press("q");
    assert_eq!(session.end().0, 0);
}

#[test]
fn the_mouse_selects_and_the_time_cursor_moves() {
    // GIVEN a finished run on the screen
    let mut session = Session::start(&["view", "{}/run.jsonl"], &finished());
    session.wait_for("Device memory");
    // WHEN a tab is clicked, as an SGR mouse report
    session.press("\x1b[<0;19;2M\x1b[<0;19;2m");
    session.wait_for("allocs/s");
    // AND the strip at the bottom THEN that moment is loaded and shown
    session.press("\x1b[<0;60;39M\x1b[<0;60;39m");
    session.wait_for(" then");
    session.wait_until("the moment found", |text| text.contains(" at 2.") && !text.contains("loading"));
    // WHEN a step is typed, and the next one is selected
    session.press("tstep 2\r");
    session.wait_for("after step 2");
    session.press("n");
    session.wait_for("after step 3");
    session.press("\x1b[D\x1b[D\x1b[D");
    session.wait_for("after step 2");
    session.press("q");
    let raw = session.raw.clone();
    let (code, restored, _) = session.end();
    assert_eq!((code, restored), (0, true));
    // AND mouse reporting is off again
    let raw = raw.lock().expect("no panic").clone();
    let last = |needle: &[u8]| raw.windows(needle.len()).rposition(|window| window == needle);
    assert!(last(b"\x1b[?1000l") > last(b"\x1b[?1000h") && last(b"\x1b[?1000h").is_some());
}

#[test]
fn the_screen_can_be_exported_to_files() {
    let mut session = Session::start(&["view", "{}/run.jsonl"], &finished());
    session.wait_for("Device memory");
    session.press("2");
    session.wait_for("allocs/s");
    for (key, name) in [("c", "memlab-lines-4242.csv"), ("j", "memlab-lines-4242.json"), ("s", "memlab-lines-4242.svg")]
    {
        session.press("e");
        session.wait_for("Write to a file");
        session.press(key);
        session.wait_for(&format!("written to {name}"));
    }
    // AND a second time into a file beside the first
    session.press("ec");
    session.wait_for("written to memlab-lines-4242-1.csv");
    let folder = session.folder.path();
    let csv = std::fs::read_to_string(folder.join("memlab-lines-4242.csv")).expect("written");
    let json: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(folder.join("memlab-lines-4242.json")).expect("written"))
            .expect("JSON");
    let svg = std::fs::read_to_string(folder.join("memlab-lines-4242.svg")).expect("written");
    // THEN sizes are bytes, and both have the same rows
    assert!(csv.starts_with("now,at peak,"), "{csv}");
    assert_eq!(csv.lines().count() - 1, json.as_array().expect("rows").len());
    let sum: u64 = json.as_array().expect("rows").iter().filter_map(|row| row["live_bytes_at_peak"].as_u64()).sum();
    assert_eq!(sum, 27_699_183_616, "{json:#}");
    assert!(json[0]["file"].is_string() && json[0]["line"].is_number(), "{:#}", json[0]);
    assert!(svg.contains("train_one_epoch") && svg.ends_with("</svg>\n"));
    session.press("q");
    assert_eq!(session.end().0, 0);
}

#[test]
fn a_stopped_view_restores_the_terminal_and_can_continue() {
    let mut session = Session::start(&["view", "{}/run.jsonl"], &finished());
    session.wait_for("Device memory");
    // WHEN Ctrl-Z is pressed THEN the normal screen is back
    session.press("\x1a");
    session.wait_until("the normal screen", |text| !text.contains("Device memory"));
    assert!(!session.screen.lock().expect("no panic").screen().hide_cursor());
    // AND when it continues, so does the dashboard
    session.signal(libc::SIGCONT);
    session.wait_for("Device memory");
    session.press("q");
    assert_eq!(session.end().0, 0);
}

#[test]
fn preferences_are_read_and_errors_are_reported() {
    let story = finished();
    let mut session = Session::start_with(&["view", "{}/run.jsonl"], &story, |folder| {
        std::fs::create_dir(folder.join("memlab")).expect("made");
        std::fs::write(folder.join("memlab/config.toml"), "units = \"MiB\"\nscreen = \"layers\"\nmouse = false\n")
            .expect("written");
    });
    session.wait_for("outermost");
    session.wait_for("MiB");
    session.press("q");
    let raw = session.raw.clone();
    assert_eq!(session.end().0, 0);
    let raw = raw.lock().expect("no panic").clone();
    assert!(!contains(&raw, b"\x1b[?1000h"), "mouse reporting stays off");
}

#[test]
fn the_screen_follows_the_terminals_size() {
    let mut session = Session::start(&["view", "{}/run.jsonl"], &finished());
    session.wait_for("Device memory");
    // WHEN the terminal shrinks to nothing and grows again
    session.resize(80, 24);
    session.wait_for("Lines");
    session.resize(12, 4);
    session.wait_for("GiB");
    let raw = session.raw.clone();
    let drawn = raw.lock().expect("no panic").len();
    session.resize(1, 1);
    session.wait_until("a cleared screen", |_| contains(&raw.lock().expect("no panic")[drawn..], b"\x1b[2J"));
    session.resize(160, 50);
    // THEN the whole dashboard is shown again
    session.wait_for("optimizer state");
    session.press("q");
    assert_eq!(session.end().0, 0);
}

/// The program of the next test, which runs it on a separate terminal.
#[test]
#[ignore = "takes the terminal, and panics"]
fn sets_up_the_terminal_and_panics() {
    let _terminal = memlab_tui::terminal::TerminalGuard::new(true).expect("there is a terminal");
    panic!("a bug");
}

#[test]
fn a_panic_restores_the_terminal() {
    // GIVEN a program that has set up the terminal like the dashboard, and panics
    let itself = std::env::current_exe().expect("this test");
    let arguments = ["terminal::sets_up_the_terminal_and_panics", "--exact", "--ignored", "--nocapture"];
    let session = Session::start_program(&itself, &arguments, &finished(), |_| ());
    let raw = session.raw.clone();
    let (code, restored, text) = session.end();
    // THEN the terminal is restored, and shows the message
    assert!(restored && code != 0 && text.contains("a bug"), "{text}");
    let raw = raw.lock().expect("no panic").clone();
    let last = |needle: &[u8]| raw.windows(needle.len()).rposition(|window| window == needle);
    assert!(last(b"\x1b[?1049l") > last(b"\x1b[?1049h") && last(b"\x1b[?1000l") > last(b"\x1b[?1000h"));
}

#[test]
fn several_views_on_one_program() {
    // GIVEN two dashboards on the same trace
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("shared.jsonl");
    std::fs::write(&path, finished().text).expect("written");
    let before = std::fs::read(&path).expect("there");
    let arguments = ["view", path.to_str().expect("a plain name")];
    let mut views = [(); 2].map(|()| Session::start(&arguments, &finished()));
    // WHEN they are used differently THEN each shows its own screen, and the trace is unchanged
    views[0].press("2");
    views[1].press("5");
    views[0].wait_for("allocs/s");
    views[1].wait_for("ended at");
    for mut view in views {
        view.press("q");
        assert_eq!(view.end().0, 0);
    }
    assert_eq!(std::fs::read(&path).expect("there"), before);
}

#[test]
fn a_termination_restores_the_terminal() {
    let session = Session::start(&["view", "{}/run.jsonl"], &finished());
    session.wait_for("Device memory");
    session.signal(libc::SIGTERM);
    let (_, restored, _) = session.end();
    assert!(restored);
}

/// Starts memlab on a terminal and returns the only descriptor of its other side.
fn start_on(folder: &std::path::Path, arguments: &[&str]) -> (std::process::Child, Watchdog, std::fs::File) {
    use std::os::fd::{FromRawFd, OwnedFd};
    use std::os::unix::process::CommandExt;
    let (mut master, mut slave) = (-1, -1);
    let size = libc::winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the descriptors and the size outlive the call; null means default name and settings.
    let opened = unsafe { libc::openpty(&mut master, &mut slave, std::ptr::null_mut(), std::ptr::null_mut(), &size) };
    assert_eq!(opened, 0);
    // SAFETY: both were just opened and have no other owner; the flag is set on our own.
    let (master, slave) = unsafe {
        libc::fcntl(master, libc::F_SETFD, libc::FD_CLOEXEC);
        (std::fs::File::from_raw_fd(master), OwnedFd::from_raw_fd(slave))
    };
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_memlab"));
    command.args(arguments).current_dir(folder).env("TERM", "xterm").env("MEMLAB_LIB", harmless_library());
    command.env(PATIENCE.0, PATIENCE.1);
    command.stdin(slave.try_clone().expect("copied")).stdout(slave.try_clone().expect("copied")).stderr(slave);
    // SAFETY: between fork and exec only async-signal-safe calls are made.
    unsafe {
        command.pre_exec(|| {
            libc::setsid();
            libc::ioctl(0, libc::TIOCSCTTY, 0);
            usual_signals()
        });
    }
    let (child, watchdog) = start(&mut command);
    (child, watchdog, master)
}

#[test]
fn a_closed_terminal_ends_the_view() {
    // GIVEN a view, and a live program, each on a terminal
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join("run.jsonl"), finished().text).expect("written");
    for arguments in [&["view", "run.jsonl"][..], &["run", "--live", "--", "sleep", "3600"]] {
        let (mut child, _watchdog, mut master) = start_on(folder.path(), arguments);
        let mut seen = Vec::new();
        while !contains(&seen, b"memlab") {
            let mut buffer = [0; 4096];
            let length = master.read(&mut buffer).expect("memlab draws");
            seen.extend_from_slice(&buffer[..length]);
        }
        // WHEN the terminal is closed THEN they end without a busy loop
        drop(master);
        let has_ended = becomes_true(|| child.try_wait().expect("the child can be waited for").is_some());
        assert!(has_ended, "{arguments:?} continues without a terminal");
    }
}

#[test]
fn ctrl_c_leaves_a_view() {
    let mut session = Session::start(&["view", "{}/run.jsonl"], &finished());
    session.wait_for("Device memory");
    session.press("\x03");
    let (code, restored, _) = session.end();
    assert_eq!((code, restored), (0, true));
}

/// Writes a trace into the runtime folder.
fn written(story: &Story, runtime: &Runtime) -> std::path::PathBuf {
    let trace = runtime.path().join("live.jsonl");
    std::fs::write(&trace, &story.text).expect("written");
    trace
}

/// Presses `o` until the process has answered and the question appears.
fn ask_to_offload(session: &mut Session) {
    let (question, too_soon) = ("to host memory?", "has not answered yet");
    loop {
        session.press("o");
        session.wait_until("an answer", |text| text.contains(question) || text.contains(too_soon));
        if session.text().contains(question) {
            return;
        }
        session.press("\x1b");
        session.wait_until("no notice", |text| !text.contains(too_soon));
    }
}

#[test]
fn memory_is_offloaded_and_restored_under_the_dashboard() {
    // GIVEN a running program with a trace and a socket, whose memory moves slowly
    let pid = std::process::id();
    let story = of_this_process(4);
    let runtime = Runtime::new();
    let trace = written(&story, &runtime);
    let process = Movable { trace, ..Movable::new(pid) };
    let go_on = process.go_on.clone();
    go_on.store(false, std::sync::atomic::Ordering::Relaxed);
    let requests = process.listen(&runtime);
    let mut session = Session::start_in(&runtime, &["top", &pid.to_string()], &story);
    session.wait_for("Device memory");
    // WHEN it should be offloaded THEN a question appears
    ask_to_offload(&mut session);
    session.wait_for(&format!("offload 4.00 GiB of train.py (pid {pid}) to host memory?"));
    session.press("n");
    session.wait_until("no question", |text| !text.contains("to host memory?"));
    assert_eq!(requests.count("offload"), 0);
    session.press("o");
    session.wait_for("to host memory?");
    session.press("y");
    // AND the operation continues while the screen is used
    session.wait_for("33 %  1.33 of 4.00 GiB");
    session.press("2");
    session.wait_for("allocs/s");
    session.wait_for("offloading 33 %");
    // WHEN it is done THEN a notice reports it, and every screen shows it
    go_on.store(true, std::sync::atomic::Ordering::Relaxed);
    session.wait_for("offloaded 4.00 GiB in 0.21 s (21.5 GB/s)");
    for key in ["1", "3", "4", "5", "6", "7", "8"] {
        session.press(key);
        session.wait_for("OFFLOADED 4.00 GiB – r restores");
    }
    // WHEN it is restored THEN the same happens
    session.press("r");
    session.wait_for("restored 4.00 GiB");
    session.wait_until("no word of it", |text| !text.contains("OFFLOADED"));
    assert_eq!((requests.count("offload"), requests.count("restore")), (1, 1));
    session.press("q");
    assert_eq!(session.end().0, 0);
}

#[test]
fn top_waits_for_a_process() {
    // GIVEN a process that is not recorded (without a name, any recorded process would match, even one of another test)
    let pid = std::process::id();
    let story = of_this_process(4);
    let runtime = Runtime::new();
    let mut session = Session::start_in(&runtime, &["top", "--wait", &pid.to_string()], &story);
    session.wait_for("waiting for");
    // WHEN it is traced THEN it is shown
    let trace = written(&story, &runtime);
    let _requests = Movable { trace, ..Movable::new(pid) }.listen(&runtime);
    session.wait_for("Device memory");
    session.press("q");
    assert_eq!(session.end().0, 0);
}

#[test]
fn failures_in_the_dashboard_are_shown_in_full() {
    let pid = std::process::id();
    let story = of_this_process(4);
    let runtime = Runtime::new();
    let trace = written(&story, &runtime);
    let failures = vec![("141 GiB of host memory are needed \u{1b}]0;owned\u{7}: free some".to_owned(), false)];
    let _requests = Movable { trace, failures, ..Movable::new(pid) }.listen(&runtime);
    let mut session = Session::start_in(&runtime, &["top", &pid.to_string()], &story);
    session.wait_for("Device memory");
    ask_to_offload(&mut session);
    session.press("y");
    session.wait_for("Failed");
    session.wait_for("141 GiB of host memory are");
    session.press("x");
    session.wait_until("the screen", |text| !text.contains("Failed"));
    session.press("q");
    let raw = session.raw.clone();
    assert_eq!(session.end().0, 0);
    let raw = raw.lock().expect("no panic").clone();
    assert!(!contains(&raw, b"\x1b]0;"), "no control characters are written");
}

#[test]
fn a_program_that_has_ended_is_not_moved() {
    let mut session = Session::start(&["view", "{}/run.jsonl"], &finished());
    session.wait_for("Device memory");
    session.press("o");
    session.wait_for("has ended and holds no GPU memory");
    session.press("q");
    assert_eq!(session.end().0, 0);
}

#[test]
fn a_kill_ends_the_view_without_delay() {
    let session = Session::start(&["view", "{}/run.jsonl"], &finished());
    session.wait_for("Device memory");
    session.signal(libc::SIGKILL);
    let (code, ..) = session.end();
    assert_ne!(code, 0);
}

#[test]
fn control_characters_do_not_reach_the_terminal() {
    // GIVEN a trace with escape codes in its names that set the title and clear the screen
    let mut session = Session::start(&["view", "{}/run.jsonl"], &common::hostile());
    session.wait_for("Lines");
    session.press("2");
    session.wait_for("Lines");
    session.press("q");
    let raw = session.raw.clone();
    session.end();
    // THEN none of them is written to the terminal
    let raw = raw.lock().expect("no panic").clone();
    for needle in [&b"owned\x07"[..], b"\x1b]0;", "\u{202e}".as_bytes()] {
        assert!(!contains(&raw, needle), "{needle:?}");
    }
}

/// A program that prints, waits for the file `go`, prints again and exits with 7.
const PROGRAM: &str = "echo first; while [ ! -e go ]; do sleep 0.05; done; echo last; exit 7";

#[test]
fn a_live_program_is_watched_to_its_end() {
    // GIVEN a program under the dashboard
    let mut session = Session::start(&["run", "--live", "--", "sh", "-c", PROGRAM], &finished());
    session.wait_for("waiting for the program to use CUDA");
    session.press("9");
    session.wait_for("first");
    // WHEN it ends
    std::fs::write(session.folder.path().join("go"), "").expect("written");
    // THEN its last state stays until `q`
    session.wait_for("exit code 7");
    session.wait_for("last");
    session.press("q");
    // AND its last output is then on the normal screen, and memlab returns its exit code
    let (code, restored, text) = session.end();
    assert_eq!((code, restored), (7, true));
    assert!(text.contains("first") && text.contains("last") && text.contains("no trace was written"), "{text}");
}

#[test]
fn leaving_a_live_program_asks_first_and_can_detach() {
    let mut session = Session::start(&["run", "--live", "--", "sh", "-c", PROGRAM], &finished());
    session.wait_for("waiting for the program");
    session.press("q");
    session.wait_for("still running");
    session.press("\x1b");
    session.wait_until("no question", |text| !text.contains("still running"));
    session.press("q");
    session.wait_for("still running");
    // WHEN it is detached THEN the program continues on this terminal
    session.press("d");
    session.wait_until("the normal screen", |text| !text.contains("memlab") && text.contains("first"));
    std::fs::write(session.folder.path().join("go"), "").expect("written");
    let (code, restored, text) = session.end();
    assert_eq!((code, restored), (7, true));
    assert!(text.contains("last"), "{text}");
}

#[test]
fn ctrl_c_twice_interrupts_a_live_program() {
    let program = "trap 'echo interrupted; exit 3' INT; echo ready; while :; do sleep 0.05; done";
    let mut session = Session::start(&["run", "--live", "--", "sh", "-c", program], &finished());
    session.press("9");
    session.wait_for("ready");
    session.press("\x03");
    session.wait_for("still running");
    session.press("\x03");
    session.wait_for("interrupted");
    session.wait_for("exit code 3");
    session.press("q");
    assert_eq!(session.end().0, 3);
}

#[test]
fn a_live_program_sees_a_terminal_of_the_panes_size() {
    let program =
        "test -t 1 && echo terminal; stty size; trap 'stty size' WINCH; while [ ! -e go ]; do sleep 0.05; done";
    let mut session = Session::start(&["run", "--live", "--", "sh", "-c", program], &finished());
    session.press("9");
    session.wait_for("terminal");
    session.wait_for("35 118");
    session.resize(100, 30);
    session.wait_for("25 98");
    std::fs::write(session.folder.path().join("go"), "").expect("written");
    session.wait_for("exit code 0");
    session.press("q");
    assert_eq!(session.end().0, 0);
}

#[test]
fn a_termination_is_passed_on_to_a_live_program() {
    let program = "trap 'echo asked to end; exit 9' TERM; echo ready; while :; do sleep 0.05; done";
    let mut session = Session::start(&["run", "--live", "--", "sh", "-c", program], &finished());
    session.press("9");
    session.wait_for("ready");
    session.signal(libc::SIGTERM);
    let (code, restored, text) = session.end();
    assert_eq!((code, restored), (9, true));
    assert!(text.contains("asked to end"), "{text}");
}

/// Reads a line and prints it, twice: under the dashboard, and after a detach.
const ASKS: &str = "printf 'first? '; read a; echo \"got <$a>\"; printf 'second? '; read b; echo \"then <$b>\"; exit 5";

#[test]
fn input_reaches_a_live_program_in_the_pane_and_after_a_detach() {
    let mut session = Session::start(&["run", "--live", "--", "sh", "-c", ASKS], &finished());
    session.press("9");
    session.wait_for("first?");
    // WHEN Enter is pressed on its screen THEN keys go to the program, even those with a meaning in memlab
    session.press("\r");
    session.wait_for("typing to the program");
    session.press("quit 1\x7f2\r");
    session.wait_for("got <quit 2>");
    session.press("\x1b");
    session.wait_until("memlab's keys", |text| !text.contains("typing to the program"));
    // AND after a detach it gets the input of the terminal
    session.press("q");
    session.wait_for("still running");
    session.press("d");
    session.wait_until("the normal screen", |text| !text.contains("Overview") && text.contains("second?"));
    session.press("and this\r");
    let (code, restored, text) = session.end();
    assert_eq!((code, restored), (5, true));
    assert!(text.contains("then <and this>"), "{text}");
    // The program's terminal echoes. This terminal must not echo again.
    assert_eq!(text.matches("and this").count(), 2, "{text}");
}

#[test]
fn a_program_that_reads_a_pipe_gets_no_keys() {
    let program = "memlab=$0; echo from a pipe | \"$memlab\" run --live -- sh -c 'read a; echo \"got <$a>\"; while [ ! -e go ]; do sleep 0.05; done'";
    let mut session =
        Session::start_program("/bin/sh".as_ref(), &["-c", program, env!("CARGO_BIN_EXE_memlab")], &finished(), |_| ());
    session.press("9");
    session.wait_for("got <from a pipe>");
    session.press("\r");
    session.wait_for("input is a pipe or a file");
    std::fs::write(session.folder.path().join("go"), "").expect("written");
    session.wait_for("exit code 0");
    session.press("q");
    assert_eq!(session.end().0, 0);
}
