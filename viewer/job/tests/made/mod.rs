//! Synthetic traces of ranks.
#![allow(dead_code, reason = "each test uses some of it")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

pub const MIB: u64 = 1 << 20;
pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1000 * MS;
/// Start of every job.
pub const START: u64 = 1_795_163_951_000_000_000;
/// Memory of each device.
const TOTAL: u64 = 8 << 30;

/// The lines that allocate: `train.py:10` and so on, by their stack number.
pub const MODEL: u32 = 1;
pub const FORWARD: u32 = 2;
pub const KEPT: u32 = 3;

/// The trace of a rank under construction.
#[derive(Clone)]
pub struct Rank {
    pub rank: u32,
    text: String,
    device: i32,
    time: u64,
    next: u64,
}

impl Rank {
    /// Begins rank `rank` of `of`, with process 100 + `rank`, on its device among the four of its host.
    pub fn begin(rank: u32, of: u32) -> Self {
        Self::begin_at(rank, of, START)
    }

    /// The same, with a start at `start` by its host's clock.
    pub fn begin_at(rank: u32, of: u32, start: u64) -> Self {
        let (host, device) = (format!("gpu{}", rank / 4 + 1), (rank % 4) as i32);
        let mut made = Self { rank, text: String::new(), device, time: 0, next: 1 << 40 };
        made.line(&format!(
            r#"{{"memlab":1,"version":"0.1.0","id":"{rank}","pid":{},"parent_pid":9,"start_unix_ns":{start},"command":["python","train.py"],"directory":"/home/ada","host":"{host}","rank":{rank},"local_rank":{device},"world_size":{of}}}"#,
            100 + rank
        ));
        made.define_device(device);
        for (id, line, function) in [(1, 10, "build"), (2, 20, "forward"), (3, 30, "main")] {
            made.line(&format!(
                r#"{{"frame":{id},"file":"/home/ada/train.py","line":{line},"function":"{function}"}}"#
            ));
            made.line(&format!(r#"{{"stack":{id},"parent":0,"frame":{id}}}"#));
        }
        made.line(r#"{"layer":1,"parent":0,"type":"Net","name":""}"#);
        made.line(r#"{"layer":2,"parent":1,"type":"Linear","name":"head"}"#);
        made.line(&format!(r#"["used",0,{device},{},{TOTAL},{}]"#, 256 * MIB, 256 * MIB));
        made
    }

    pub fn line(&mut self, line: &str) {
        let _ = writeln!(self.text, "{line}");
    }

    pub fn define_device(&mut self, device: i32) {
        self.line(&format!(
            r#"{{"device":{device},"name":"NVIDIA H200","total_bytes":{TOTAL},"bus_id":"0000:1B:0{device}.0"}}"#
        ));
    }

    pub fn pass(&mut self, ns: u64) {
        self.time += ns;
    }

    /// Adds the memory of another process on the rank's device.
    pub fn other_process(&mut self, pid: u32, bytes: u64) {
        let device = self.device;
        self.line(&format!(r#"{{"others":{device},"processes":[[{pid},{bytes}]]}}"#));
    }

    /// Allocates on the rank's own device, and returns the address.
    pub fn allocate(&mut self, bytes: u64, stack: u32, layer: u32) -> u64 {
        self.allocate_on(self.device, bytes, stack, layer)
    }

    pub fn allocate_on(&mut self, device: i32, bytes: u64, stack: u32, layer: u32) -> u64 {
        let (time, address) = (self.time, self.next);
        self.next += bytes;
        self.line(&format!(
            r#"["d+",{time},1,{device},{address},{bytes},"device","cudaMalloc","libc10_cuda.so",{stack},{layer},128]"#
        ));
        self.line(&format!(r#"["a",{time},1,{device},{address},{bytes},{stack},{layer},0]"#));
        address
    }

    pub fn free(&mut self, address: u64) {
        let (time, device) = (self.time, self.device);
        self.line(&format!(r#"["f",{time},1,{device},{address}]"#));
    }

    pub fn out_of_memory(&mut self, requested: u64, allocated: u64) {
        let (time, device) = (self.time, self.device);
        self.line(&format!(r#"["oom",{time},1,{device},{requested},{allocated},{allocated},{KEPT},0]"#));
    }

    /// A step of 100 ms: 64 MiB in forward, plus `keep` bytes that stay.
    pub fn step(&mut self, index: u64, keep: u64) {
        let activations = self.allocate(64 * MIB, FORWARD, 2);
        if keep > 0 {
            self.allocate(keep, KEPT, 0);
        }
        self.pass(100 * MS);
        self.free(activations);
        let time = self.time;
        self.line(&format!(r#"["step",{time},1,{index}]"#));
    }

    /// A model of 32 MiB, and six steps that each keep `keep` bytes.
    pub fn train(&mut self, keep: u64) {
        self.allocate(32 * MIB, MODEL, 0);
        for index in 0..6 {
            self.step(index, keep);
        }
    }

    pub fn end(&mut self) {
        let time = self.time;
        self.line(&format!(r#"["end",{time},0,null]"#));
    }

    /// Writes the trace to `FOLDER/RANK.jsonl`.
    pub fn write(&self, folder: &Path) -> PathBuf {
        let path = folder.join(format!("{}.jsonl", self.rank));
        std::fs::write(&path, &self.text).unwrap();
        path
    }
}

/// Writes ranks that each train and end; rank `r` keeps `keep(r)` bytes per step.
pub fn trained(folder: &Path, count: u32, keep: impl Fn(u32) -> u64) -> Vec<PathBuf> {
    let rank = |number: u32| {
        let mut rank = Rank::begin(number, count);
        rank.train(keep(number));
        rank.end();
        rank.write(folder)
    };
    (0..count).map(rank).collect()
}
