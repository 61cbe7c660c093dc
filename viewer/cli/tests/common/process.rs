//! A fake process that implements `docs/control.md` on its socket.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::GIB;
use super::child::alone;

/// The folder with the sockets of processes.
pub struct Runtime {
    folder: TempDir,
}

impl Runtime {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let sockets = folder.path().join("memlab");
        std::fs::create_dir(&sockets).expect("made");
        std::fs::set_permissions(&sockets, std::fs::Permissions::from_mode(0o700)).expect("set");
        Self { folder }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn socket(&self, pid: u32) -> PathBuf {
        self.path().join("memlab").join(format!("{pid}.sock"))
    }

    /// `memlab` with this folder as the runtime folder.
    pub fn memlab(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_memlab"));
        command.args(arguments).current_dir(self.path()).env("XDG_RUNTIME_DIR", self.path());
        for name in ["LD_PRELOAD", "MEMLAB_OUTPUT", "NO_COLOR"] {
            command.env_remove(name);
        }
        alone(&mut command);
        command
    }

    /// Answers the requests to a process with `reply`; returns the list that collects them.
    pub fn listen(&self, pid: u32, mut reply: impl FnMut(&Value) -> String + Send + 'static) -> Requests {
        let listener = UnixListener::bind(self.socket(pid)).expect("bound");
        let requests = Requests::default();
        let seen = requests.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut line = String::new();
                let read = BufReader::new(&stream).read_line(&mut line);
                let (Ok(1..), Ok(request)) = (read, serde_json::from_str::<Value>(&line)) else { continue };
                assert!(line.len() <= 1 << 20, "{} bytes are too many", line.len());
                seen.0.lock().expect("no panic").push(request.clone());
                let _ = (&stream).write_all((reply(&request) + "\n").as_bytes());
            }
        });
        requests
    }
}

/// The requests to a process, without `status`.
#[derive(Clone, Default)]
pub struct Requests(Arc<Mutex<Vec<Value>>>);

impl Requests {
    pub fn all(&self) -> Vec<Value> {
        let all = self.0.lock().expect("no panic").clone();
        all.into_iter().filter(|request| request["command"] != "status").collect()
    }

    pub fn count(&self, command: &str) -> usize {
        self.0.lock().expect("no panic").iter().filter(|request| request["command"] == command).count()
    }
}

/// A process with memory that can be moved.
#[derive(Clone)]
pub struct Movable {
    pub pid: u32,
    pub id: String,
    pub trace: PathBuf,
    pub device_bytes: u64,
    pub host_bytes: u64,
    /// Number of queries before an operation is done.
    pub steps: u64,
    /// While false, operations stop after the first step.
    pub go_on: Arc<AtomicBool>,
    /// The failures of the next operations: the error, and true if the operation can be repeated.
    pub failures: Vec<(String, bool)>,
    pub note: Option<String>,
    pub refusal: Option<String>,
    /// Reason why it cannot move memory.
    pub why_not: Option<String>,
    pub state: String,
    pub limits: Vec<Value>,
    pub operation: Option<Running>,
    /// Trace time from which a requested search may begin.
    pub search_ns: u64,
}

#[derive(Clone)]
pub struct Running {
    id: u64,
    kind: &'static str,
    step: u64,
    bytes: u64,
    fails: Option<(String, bool)>,
    is_over: bool,
}

impl Movable {
    pub fn new(pid: u32) -> Self {
        Self {
            pid,
            id: "5f3c9a1be07d4c22".to_owned(),
            trace: "/nowhere/run.jsonl".into(),
            device_bytes: 4 * GIB,
            host_bytes: 0,
            steps: 3,
            go_on: Arc::new(AtomicBool::new(true)),
            failures: Vec::new(),
            note: None,
            refusal: None,
            why_not: None,
            state: "resident".to_owned(),
            limits: Vec::new(),
            operation: None,
            search_ns: 0,
        }
    }

    pub fn listen(mut self, runtime: &Runtime) -> Requests {
        runtime.listen(self.pid, move |request| self.reply(request).to_string())
    }

    pub fn reply(&mut self, request: &Value) -> Value {
        match (request["command"].as_str(), &self.refusal) {
            (Some("status"), _) => self.status(),
            (_, Some(refusal)) => json!({ "ok": false, "error": refusal }),
            (Some("offload"), _) => {
                let ranges = request["ranges"].as_array();
                let kind = if ranges.is_some() { "move" } else { "offload" };
                let bytes = ranges.map(|ranges| ranges.iter().filter_map(|range| range[1].as_u64()).sum());
                self.start(kind, bytes.unwrap_or(self.device_bytes))
            }
            (Some("restore"), _) => self.start("restore", self.host_bytes),
            (Some("limit"), _) => {
                let on_limit = request["on_limit"].as_str().unwrap_or("oom");
                self.limits = match request["bytes"].as_u64() {
                    Some(bytes) => vec![json!({
                        "device": request["device"].as_u64().unwrap_or(0),
                        "limit_bytes": bytes, "used_bytes": self.device_bytes, "spilled_bytes": 0, "on_limit": on_limit,
                    })],
                    None => Vec::new(),
                };
                json!({ "ok": true })
            }
            (Some("holders"), _) => json!({ "ok": true, "time_ns": self.search_ns }),
            (Some("checkpointed"), _) => {
                self.state = if request["value"] == true { "checkpointed" } else { "resident" }.to_owned();
                json!({ "ok": true })
            }
            _ => json!({ "ok": false, "error": "unknown request" }),
        }
    }

    fn start(&mut self, kind: &'static str, bytes: u64) -> Value {
        let id = self.operation.as_ref().map_or(1, |operation| operation.id + 1);
        let fails = (!self.failures.is_empty()).then(|| self.failures.remove(0));
        self.operation = Some(Running { id, kind, step: 0, bytes, fails, is_over: false });
        json!({ "ok": true, "operation": id })
    }

    fn status(&mut self) -> Value {
        self.advance();
        let operation = self.operation.as_ref().map(|operation| {
            let done = if operation.is_over { operation.bytes } else { operation.bytes / self.steps * operation.step };
            let phase = match (operation.is_over, &operation.fails) {
                (true, Some(_)) => "failed",
                (true, None) => "done",
                (false, _) => "copying",
            };
            let failure = operation.fails.as_ref().filter(|_| operation.is_over);
            json!({
                "id": operation.id, "kind": operation.kind, "phase": phase,
                "done_bytes": done, "total_bytes": operation.bytes, "seconds": 0.213, "copy_seconds": 0.2,
                "error": failure.map(|(error, _)| error), "retryable": failure.is_some_and(|(_, retryable)| *retryable),
                "note": self.note.as_ref().filter(|_| operation.is_over),
            })
        });
        let moving = match &self.why_not {
            Some(why_not) => json!({ "enabled": false, "state": self.state, "why_not": why_not }),
            None => json!({
                "enabled": true, "state": self.state, "device_bytes": self.device_bytes, "host_bytes": self.host_bytes,
                "fixed_bytes": 18 << 20, "arena_bytes": 0, "page_bytes": 2 << 20, "operation": operation,
            }),
        };
        json!({
            "ok": true, "pid": self.pid, "id": self.id, "trace": self.trace, "rank": null,
            "command": ["python", "train.py"], "state": if self.state == "resident" { "recording" } else { &self.state },
            "move": moving, "limits": self.limits,
        })
    }

    fn advance(&mut self) {
        let Some(operation) = self.operation.as_mut().filter(|operation| !operation.is_over) else { return };
        if operation.step == 0 || self.go_on.load(Ordering::Relaxed) {
            operation.step += 1;
        }
        let (doing, done) = match operation.kind {
            "offload" => ("offloading", "offloaded"),
            "restore" => ("restoring", "resident"),
            _ => ("moving", "partly_offloaded"),
        };
        if operation.step <= self.steps {
            self.state = doing.to_owned();
            return;
        }
        operation.is_over = true;
        let (bytes, failed) = (operation.bytes, operation.fails.is_some());
        match (operation.kind, failed) {
            ("restore", true) => self.state = "offloaded".to_owned(),
            (_, true) => self.state = "resident".to_owned(),
            ("restore", false) => {
                self.state = done.to_owned();
                (self.device_bytes, self.host_bytes) = (self.device_bytes + bytes, 0);
            }
            (_, false) => {
                self.state = done.to_owned();
                self.device_bytes -= bytes;
                self.host_bytes += bytes;
            }
        }
    }
}
