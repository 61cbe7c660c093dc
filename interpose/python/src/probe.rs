//! Checks without a crash whether memory can be read.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::pipe::{PipeFlags, pipe_with};

/// Checks through the kernel whether memory can be read: `write` to a pipe fails with `EFAULT` instead of crashing.
pub struct Probe {
    read_end: OwnedFd,
    write_end: OwnedFd,
}

impl Probe {
    /// Returns `None` if no pipe can be created.
    pub fn new() -> Option<Self> {
        let (read_end, write_end) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
        Some(Self { read_end, write_end })
    }

    /// Returns true if the bytes can be read; checks at most the first 512.
    pub fn readable(&self, address: *const u8, length: usize) -> bool {
        let mut sink = [0u8; 512];
        let length = length.min(sink.len());
        // SAFETY: the kernel checks the memory, and returns an error if it cannot be read.
        let written = unsafe { libc::write(self.write_end.as_raw_fd(), address.cast(), length) };
        if written > 0 {
            let _ = rustix::io::read(&self.read_end, &mut sink);
        }
        written == length as isize
    }
}
