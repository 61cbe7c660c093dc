//! A notice, as environment variables of a command and as JSON.

use std::path::PathBuf;
use std::sync::Arc;

use memlab_trace::record::Header;
use serde_json::{Value, json};

/// Subject of a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NoticeKind {
    /// An allocation failed.
    OutOfMemory,
    /// Memory grows from step to step.
    Leak,
    /// A device's free memory is below the requested minimum.
    LowMemory,
}

impl NoticeKind {
    /// Name for programs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OutOfMemory => "out-of-memory",
            Self::Leak => "leak",
            Self::LowMemory => "low-memory",
        }
    }
}

/// The process that a notice is about.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NoticedProcess {
    /// First line of its trace.
    pub header: Header,
    /// Path of its trace.
    pub trace: PathBuf,
}

/// A notice.
#[derive(Clone, Debug, PartialEq)]
pub struct Notice {
    /// Subject.
    pub kind: NoticeKind,
    /// Process.
    pub process: Arc<NoticedProcess>,
    /// Device.
    pub device: i32,
    /// Bytes requested, grown, or free, depending on the kind.
    pub bytes: u64,
    /// Description of the event, in one or two sentences.
    pub message: String,
    /// Advice.
    pub next: String,
    /// Nanoseconds since the start of the trace.
    pub time: u64,
    /// Completed optimizer steps.
    pub steps: u64,
    /// Bytes allocated on the device at that time.
    pub allocated_bytes: u64,
    /// Bytes reserved by PyTorch's allocator at that time.
    pub reserved_bytes: u64,
    /// Bytes in use on the device at that time, by all processes.
    pub used_bytes: u64,
    /// Memory of the device, in bytes; 0: unknown.
    pub total_bytes: u64,
}

impl Notice {
    /// Environment variables for a command.
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
            // A trace can contain anything, but a variable cannot contain a NUL.
            value.retain(|letter| letter != '\0');
        }
        variables
    }

    /// JSON for the standard input of a command, and for a webhook.
    ///
    /// Chats show `text`.
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
