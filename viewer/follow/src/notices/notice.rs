//! One notice, as variables of a command and as JSON.

use std::path::PathBuf;
use std::sync::Arc;

use memlab_trace::record::Header;
use serde_json::{Value, json};

/// What a notice is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NoticeKind {
    /// An allocation failed.
    OutOfMemory,
    /// Memory grows from step to step.
    Leak,
    /// Less of a device is free than was asked for.
    LowMemory,
}

impl NoticeKind {
    /// Its name, for programs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OutOfMemory => "out-of-memory",
            Self::Leak => "leak",
            Self::LowMemory => "low-memory",
        }
    }
}

/// Whose memory a notice is about.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NoticedProcess {
    /// The first line of its trace.
    pub header: Header,
    /// Its trace.
    pub trace: PathBuf,
}

/// One notice.
#[derive(Clone, Debug, PartialEq)]
pub struct Notice {
    /// What it is about.
    pub kind: NoticeKind,
    /// Whose memory.
    pub process: Arc<NoticedProcess>,
    /// Of which device.
    pub device: i32,
    /// What was asked for, what grew, what is free.
    pub bytes: u64,
    /// What happened, in a sentence or two.
    pub message: String,
    /// What to do about it.
    pub next: String,
    /// Since the start of the trace, in nanoseconds.
    pub time: u64,
    /// Optimizer steps that had ended.
    pub steps: u64,
    /// Allocated on the device when it was noticed.
    pub allocated_bytes: u64,
    /// Reserved by PyTorch's allocator then.
    pub reserved_bytes: u64,
    /// In use on the device then, by whomever.
    pub used_bytes: u64,
    /// The device's memory; 0: not known.
    pub total_bytes: u64,
}

impl Notice {
    /// For the environment of a command.
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        let header = &self.process.header;
        let mut variables = vec![
            ("MEMLAB_NOTICE", self.kind.as_str().to_owned()),
            ("MEMLAB_MESSAGE", self.message.clone()),
            ("MEMLAB_NEXT", self.next.clone()),
            ("MEMLAB_PID", header.pid.to_string()),
            ("MEMLAB_HOST", header.host.clone()),
            ("MEMLAB_DEVICE", self.device.to_string()),
            ("MEMLAB_BYTES", self.bytes.to_string()),
            ("MEMLAB_STEPS", self.steps.to_string()),
            ("MEMLAB_TRACE", self.process.trace.display().to_string()),
        ];
        variables.extend(header.rank.map(|rank| ("MEMLAB_RANK", rank.to_string())));
        for (_, value) in &mut variables {
            // What a trace says can contain anything; no variable can contain a NUL.
            value.retain(|letter| letter != '\0');
        }
        variables
    }

    /// For the standard input of a command, and for a webhook. `text` is what chats show.
    pub fn json(&self) -> Value {
        let header = &self.process.header;
        let rank = header.rank.map(|rank| format!(", rank {rank}")).unwrap_or_default();
        let whose = format!("{} (pid {}{rank} on {})", header.command.join(" "), header.pid, header.host);
        json!({
            "notice": self.kind.as_str(),
            "text": format!("{whose}: {} {}", self.message, self.next),
            "message": self.message,
            "next": self.next,
            "pid": header.pid,
            "rank": header.rank,
            "world_size": header.world_size,
            "host": header.host,
            "command": header.command,
            "trace": self.process.trace.display().to_string(),
            "device": self.device,
            "time_s": self.time as f64 / 1e9,
            "steps": self.steps,
            "bytes": self.bytes,
            "allocated_bytes": self.allocated_bytes,
            "reserved_bytes": self.reserved_bytes,
            "used_bytes": self.used_bytes,
            "total_bytes": self.total_bytes,
        })
    }
}
