//! A synthetic trace of a training run, as libmemlab.so would have written it.
#![allow(dead_code, reason = "each test uses some of it")]

pub mod child;
pub mod dashboard;
pub mod map;
pub mod process;
pub mod session;

use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use memlab_base::clock::now_unix_ns;
use memlab_base::query::Detail;
use memlab_follow::feed::{Roster, build_snapshot};
use memlab_follow::snapshot::{ProcessSnapshot, ProcessState};
use memlab_trace::{Replay, Sink, decode_line};
use memlab_tui::app::App;

pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;
/// The start time of every synthetic run.
pub const START: u64 = 1_795_163_951_000_000_000;
const SECOND: u64 = 1_000_000_000;

/// Flags of allocations.
const FORWARD: u32 = 1 + 4;
const BACKWARD: u32 = 2 + 16;
const OPTIMIZER: u32 = 3;
const MOVED: u32 = 64;
const SEGMENT: u32 = 128;

/// A trace, built event by event.
pub struct Story {
    pub text: String,
    time: u64,
    next: u64,
}

impl Story {
    /// The start of a process, with its code and its model of four blocks.
    pub fn begin(pid: u32, rank: Option<(u32, u32)>) -> Self {
        let mut story = Self { text: String::new(), time: 0, next: 0x7f00_0000_0000 };
        let (rank, world) =
            rank.map_or(("null".into(), "null".into()), |(rank, world)| (rank.to_string(), world.to_string()));
        story.line(&format!(
            r#"{{"memlab":1,"version":"0.1.0","id":"5f3c9a1be07d4c22","pid":{pid},"parent_pid":4200,"start_unix_ns":{START},"command":["python","train.py","--batch","64"],"directory":"/home/ada/gpt","host":"gpu1","rank":{rank},"local_rank":{rank},"world_size":{world}}}"#
        ));
        story.line(
            r#"{"software":"torch","version":"2.15.0","root":"/home/ada/.venv/lib/python3.11/site-packages/torch"}"#,
        );
        let frames = [
            ("train.py", 12, "main"),
            ("gpt/model.py", 31, "GPT.forward"),
            ("gpt/model.py", 58, "Attention.forward"),
            ("gpt/model.py", 74, "MLP.forward"),
            ("train.py", 88, "train_one_epoch"),
            ("data/loader.py", 140, "Batches.__next__"),
        ];
        for (index, (file, line, function)) in frames.iter().enumerate() {
            let id = index + 1;
            story.line(&format!(
                r#"{{"frame":{id},"file":"/home/ada/gpt/{file}","line":{line},"function":"{function}"}}"#
            ));
            story.line(&format!(r#"{{"stack":{id},"parent":{},"frame":{id}}}"#, usize::from(id > 1)));
        }
        story.line(r#"{"layer":1,"parent":0,"type":"GPT","name":""}"#);
        for block in 0..4 {
            let id = 10 * (block + 1);
            story.line(&format!(r#"{{"layer":{id},"parent":1,"type":"Block","name":"h.{block}"}}"#));
            story.line(&format!(r#"{{"layer":{},"parent":{id},"type":"Attention","name":"h.{block}.attn"}}"#, id + 1));
            story.line(&format!(r#"{{"layer":{},"parent":{id},"type":"MLP","name":"h.{block}.mlp"}}"#, id + 2));
        }
        story
    }

    pub fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// Makes this process, on this machine and since now, the writer instead of `pid`.
    pub fn write_here(&mut self, pid: u32) {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("Linux has it");
        let host = format!("\"host\":\"{}\"", host.trim());
        for (from, to) in [
            (format!("\"pid\":{pid}"), format!("\"pid\":{}", std::process::id())),
            (format!("\"start_unix_ns\":{START}"), format!("\"start_unix_ns\":{}", now_unix_ns())),
            ("\"host\":\"gpu1\"".to_owned(), host.clone()),
            ("\"host\":\"gpu2\"".to_owned(), host),
        ] {
            self.text = self.text.replace(&from, &to);
        }
    }

    pub fn pass(&mut self, milliseconds: u64) {
        self.time += milliseconds * 1_000_000;
    }

    pub fn device(&mut self, device: i32, total: u64) {
        self.line(&format!(
            r#"{{"device":{device},"name":"NVIDIA H200","total_bytes":{total},"bus_id":"0000:1B:0{device}.0"}}"#
        ));
    }

    pub fn segment(&mut self, device: i32, bytes: u64) {
        let (time, address) = (self.time, self.next);
        self.line(&format!(
            r#"["d+",{time},1,{device},{address},{bytes},"device","cudaMalloc","libc10_cuda.so",1,0,{SEGMENT}]"#
        ));
    }

    pub fn alloc(&mut self, device: i32, bytes: u64, stack: u32, layer: u32, flags: u32) -> u64 {
        let (time, address) = (self.time, self.next);
        self.next += bytes;
        self.line(&format!(r#"["a",{time},1,{device},{address},{bytes},{stack},{layer},{flags}]"#));
        address
    }

    pub fn free(&mut self, device: i32, address: u64) {
        let time = self.time;
        self.line(&format!(r#"["f",{time},1,{device},{address}]"#));
    }

    pub fn used(&mut self, device: i32, used: u64, total: u64, process: u64) {
        let time = self.time;
        self.line(&format!(r#"["used",{time},{device},{used},{total},{process}]"#));
    }

    fn tag(&mut self, device: i32, address: u64, category: &str, bytes: u64, name: &str) {
        let time = self.time;
        self.line(&format!(r#"["tag",{time},{device},{address},"{category}",{bytes},1,"{name}"]"#));
    }

    /// Trains a GPT on one device: moves the parameters, then runs `steps` steps.
    pub fn train(&mut self, device: i32, steps: u64) {
        let total = 141 * GIB;
        self.device(device, total);
        self.pass(300);
        self.segment(device, 30 * GIB);
        let mut parameters = Vec::new();
        for block in 0..4 {
            for (part, bytes) in [("attn", 512 * MIB), ("mlp", GIB)] {
                let address = self.alloc(device, bytes, 1, 0, MOVED);
                self.tag(device, address, "parameter", bytes, &format!("h.{block}.{part}.weight"));
                parameters.push((address, bytes, format!("h.{block}.{part}.weight")));
                self.pass(40);
            }
        }
        self.used(device, 33 * GIB, total, 32 * GIB);
        self.alloc(device, 64 * MIB, 3, 0, 8);
        for step in 0..steps {
            self.step(device, step, &parameters);
        }
    }

    fn step(&mut self, device: i32, step: u64, parameters: &[(u64, u64, String)]) {
        let batch = self.alloc(device, 96 * MIB, 6, 0, 0);
        let mut activations = Vec::new();
        for block in 0..4u32 {
            let layer = 10 * (block + 1);
            activations.push(self.alloc(device, 700 * MIB, 3, layer + 1, FORWARD));
            let temporary = self.alloc(device, 300 * MIB, 3, layer + 1, FORWARD);
            self.pass(60);
            activations.push(self.alloc(device, 900 * MIB, 4, layer + 2, FORWARD));
            self.free(device, temporary);
            self.pass(60);
        }
        let logits = self.alloc(device, 400 * MIB, 2, 1, FORWARD);
        self.pass(30);
        let mut gradients = Vec::new();
        for (index, (_, bytes, name)) in parameters.iter().enumerate().rev() {
            let block = index as u32 / 2;
            let layer = 10 * (block + 1) + 1 + index as u32 % 2;
            let address = self.alloc(device, *bytes, 3 + index as u32 % 2, layer, BACKWARD);
            self.tag(device, address, "gradient", *bytes, name);
            gradients.push(address);
            self.free(device, activations[index]);
            self.pass(70);
        }
        self.free(device, logits);
        self.free(device, batch);
        if step == 0 {
            for (_, bytes, name) in parameters {
                for state in ["exp_avg", "exp_avg_sq"] {
                    let address = self.alloc(device, *bytes, 5, 0, OPTIMIZER);
                    self.tag(device, address, "optimizer_state", *bytes, &format!("{name}:{state}"));
                }
                self.pass(20);
            }
            self.used(device, 35 * GIB, 141 * GIB, 34 * GIB);
        }
        for address in gradients {
            self.free(device, address);
        }
        let time = self.time;
        self.line(&format!(r#"["step",{time},1,{step}]"#));
        self.pass(50);
    }

    /// Ends an optimizer step.
    pub fn end_step(&mut self, step: u64) {
        let time = self.time;
        self.line(&format!(r#"["step",{time},1,{step}]"#));
    }

    /// Frees every live block.
    pub fn free_all(&mut self) {
        let address =
            |line: &str| line.split(',').nth(4).and_then(|address| address.trim_end_matches(']').parse::<u64>().ok());
        let of_kind = |kind: &str| {
            self.text.lines().filter(|line| line.starts_with(kind)).filter_map(address).collect::<Vec<_>>()
        };
        let (mut left, freed) = (of_kind("[\"a\""), of_kind("[\"f\""));
        left.retain(|address| !freed.contains(address));
        for address in left {
            self.free(0, address);
        }
    }

    pub fn out_of_memory(&mut self, device: i32) {
        let time = self.time;
        self.line(&format!(r#"["oom",{time},1,{device},{},{},{},4,22]"#, 48 * GIB, 29 * GIB, 30 * GIB));
    }

    pub fn end(&mut self, code: &str, signal: &str) {
        let time = self.time;
        self.line(&format!(r#"["end",{time},{code},{signal}]"#));
    }

    /// A search that finds these blocks in a list of a module: `name`, of which each block is a tensor.
    pub fn search(&mut self, number: u32, name: &str, addresses: &[u64]) {
        let (time, count) = (self.time, addresses.len());
        let list = format!(r#"{{"kind":"sequence","name":"list","items":{count}}}"#);
        let tensors = format!(r#"{{"kind":"tensor","items":{count},"memory":{addresses:?}}}"#);
        let module = r#"{"kind":"module","name":"__main__","file":"/home/ada/gpt/train.py"}"#;
        let edges = format!(r#"[[0,1,"unnamed","",0],[1,2,"global","{name}",15],[2,3,"item","",0]]"#);
        self.line(&format!(r#"{{"holder_search":{number},"time":{time},"reason":"growth","pause_ns":5130211}}"#));
        self.line(&format!(r#"{{"holders":{number},"nodes":[{{"kind":"root"}},{module},{list},{tensors}]}}"#));
        self.line(&format!(r#"{{"holders":{number},"edges":{edges},"took_ns":1,"last":true}}"#));
    }

    /// The present time, in nanoseconds.
    pub fn time_ns(&self) -> u64 {
        self.time
    }

    pub fn seconds(&self) -> u64 {
        self.time / SECOND
    }

    /// The viewer's snapshot of the trace.
    pub fn process(&self, state: ProcessState) -> ProcessSnapshot {
        self.process_in(state, Detail::None)
    }

    /// The same with the details that a screen needs.
    pub fn process_in(&self, state: ProcessState, detail: Detail) -> ProcessSnapshot {
        let mut replay = Replay::with_history(5_000);
        for line in self.text.lines() {
            let record = decode_line(line.as_bytes()).unwrap_or_else(|error| panic!("{error}: {line}"));
            assert!(replay.take(record).is_continue());
        }
        ProcessSnapshot::of(&replay, Path::new("/home/ada/gpt/memlab-train-4242.jsonl"), state, detail)
    }
}

/// Writes a trace with a clock that is a day ahead: its writer, on another machine, counts as alive all day.
fn write_later(path: &Path, text: &str) {
    std::fs::write(path, text).expect("written");
    let file = std::fs::File::options().write(true).open(path).expect("opened");
    file.set_modified(SystemTime::now() + Duration::from_secs(86_400)).expect("a time in the future");
}

/// Traces in files, and answers to a dashboard's queries about them.
pub struct Opened {
    _folder: tempfile::TempDir,
    paths: Vec<PathBuf>,
    roster: Roster,
}

impl Opened {
    pub fn new(stories: &[&Story]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let open = |(index, story): (usize, &&Story)| {
            let path = folder.path().join(format!("{index}.jsonl"));
            write_later(&path, &story.text);
            path
        };
        let paths: Vec<PathBuf> = stories.iter().enumerate().map(open).collect();
        let mut roster = Roster::open(&paths).expect("traces");
        roster.read_to_end(&mut |_| ControlFlow::Continue(()));
        Self { _folder: folder, paths, roster }
    }

    /// Writes and reads the events that were added to the stories.
    pub fn rewrite(&mut self, stories: &[&Story]) {
        for (path, story) in std::iter::zip(&self.paths, stories) {
            write_later(path, &story.text);
        }
        self.roster.read_to_end(&mut |_| ControlFlow::Continue(()));
    }

    /// Answers the dashboard's queries until none are left.
    pub fn show(&mut self, app: &mut App) {
        for _ in 0..3 {
            self.roster.set_front(app.query().front.as_deref());
            self.roster.read_to_end(&mut |_| ControlFlow::Continue(()));
            let snapshot = build_snapshot(&mut self.roster, &app.query(), None, &|| false).expect("is not cancelled");
            app.on_snapshot(snapshot.into());
        }
        assert!(!app.is_seeking());
    }
}

/// The trace of a training in progress: its writer is this process.
pub fn of_this_process(steps: u64) -> Story {
    let mut story = trained(steps);
    story.write_here(4242);
    story
}

/// A run of `steps` steps on one device.
pub fn trained(steps: u64) -> Story {
    let mut story = Story::begin(4242, None);
    story.train(0, steps);
    story
}

/// The same, recorded with GPU work: most of it in the first block, in forward and backward, a copy of a batch, and the work
/// of a line that holds no memory.
pub fn timed(steps: u64) -> Story {
    let mut story = trained(steps);
    let add =
        "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEESt5arrayIPcLm3EELb0EEEviT0_T1_";
    for (id, name) in ["sm90_xmma_gemm_bf16", add, "copy pinned to device", "fill"].into_iter().enumerate() {
        story.line(&format!(r#"{{"kernel":{},"name":"{name}"}}"#, id + 1));
    }
    story.line(r#"{"frame":7,"file":"/home/ada/gpt/train.py","line":90,"function":"train_one_epoch"}"#);
    story.line(r#"{"stack":7,"parent":1,"frame":7}"#);
    let time = story.time;
    for (stack, layer, phase, kernel, calls, microseconds, bytes) in [
        (3, 11, 1, 1, 300, 41_000, 0),
        (3, 11, 2, 1, 600, 83_000, 0),
        (3, 21, 1, 2, 300, 900, 0),
        (4, 12, 1, 1, 100, 22_500, 0),
        (4, 12, 2, 2, 200, 1_750, 0),
        (6, 0, 0, 3, 12, 6_100, 96 * MIB),
        (7, 0, 3, 4, 48, 77, GIB / 2),
    ] {
        let nanoseconds = microseconds * 1_000;
        story.line(&format!(r#"["work",{time},0,{stack},{layer},{phase},{kernel},{calls},{nanoseconds},{bytes}]"#));
    }
    story.line(r#"{"link":0,"bytes_per_second":64000000000}"#);
    story.line(&format!(r#"["step_work",{time},0,0,{steps},1560,155327000,0,0]"#));
    story.line(&format!(r#"["busy",{time},0,150000000,45000000,5000000]"#));
    story
}

/// A trace with hostile names.
pub fn hostile() -> Story {
    let mut story = Story::begin(4242, None);
    let hostile_operation = r"\u001b[2J\u001b]0;owned\u0007\u202eabc\r\n\u009b31m";
    story.line(&format!(
        r#"{{"frame":20,"file":"/{hostile_operation}.py","line":4294967295,"function":"{hostile_operation}"}}"#
    ));
    story.line(r#"{"stack":20,"parent":21,"frame":20}"#);
    story.line(r#"{"stack":21,"parent":20,"frame":20}"#);
    story.line(&format!(r#"{{"layer":30,"parent":30,"type":"{hostile_operation}","name":"{hostile_operation}"}}"#));
    story.line(&format!(r#"{{"warning":"{hostile_operation}"}}"#));
    story.line(&format!(
        r#"{{"device":3,"name":"{hostile_operation}","total_bytes":18446744073709551615,"bus_id":null}}"#
    ));
    let max = u64::MAX;
    story.line(&format!(r#"["a",{max},1,3,4096,{},20,30,5]"#, max / 4));
    story.line(&format!(r#"["a",5,1,3,8192,{},20,30,5]"#, max / 4));
    story.line(&format!(r#"["used",{max},3,{max},{max},{max}]"#));
    story.line(&format!(r#"["step",{max},1,{max}]"#));
    story.line(&format!(r#"["oom",{max},1,3,{max},{max},{max},20,30]"#));
    story
}

/// Text with line numbers, for failure messages.
pub fn numbered(text: &str) -> String {
    let mut numbered = String::new();
    for (number, line) in text.lines().enumerate() {
        let _ = writeln!(numbered, "{number:>3} {line}");
    }
    numbered
}
