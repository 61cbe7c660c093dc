//! Sums of what ran, by place and kernel.

use hashbrown::HashMap;
use memlab_trace::encode::{self, LineBuffer};
use parking_lot::Mutex;

use crate::attribution::result::Attribution;
use crate::locks;
use crate::recorder::Recorder;

/// The trace grows by at most this many bytes a second, after the first sums.
const BYTES_PER_SECOND: u64 = 16 << 10;

/// The most names of kernels; libraries and compilers make some thousands.
const MAX_NAMES: usize = 1 << 16;

/// Kinds of memory that copies are between.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum Memory {
    Device,
    /// Another device's.
    Peer,
    Pageable,
    Pinned,
    Managed,
}

impl Memory {
    fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Peer => "peer",
            Self::Pageable => "pageable",
            Self::Pinned => "pinned",
            Self::Managed => "managed",
        }
    }
}

/// What ran.
#[derive(Clone, Copy)]
pub enum What<'a> {
    /// A kernel, by its name as the compiler has mangled it.
    Kernel(&'a [u8]),
    Copy(Memory, Memory),
    Fill,
}

/// What ran on a GPU.
pub struct Done<'a> {
    pub device: u32,
    pub what: What<'a>,
    pub nanoseconds: u64,
    pub bytes: u64,
}

/// Where a sum counts: device, stack, layer, flags, and the kernel's number.
type Key = (u32, u32, u32, u32, u32);

#[derive(Clone, Copy, Default)]
struct Sum {
    calls: u64,
    nanoseconds: u64,
    bytes: u64,
}

/// Those of this process.
pub static SUMS: Mutex<Sums> = Mutex::new(Sums::new());

/// Called in a forked child, where nothing runs.
pub fn reset_in_child() {
    locks::reset_in_child(&SUMS, Sums::new());
}

pub struct Sums {
    /// What ran since the last writing.
    since: Option<HashMap<Key, Sum>>,
    /// Numbers of kernels, copies and fills, and how many of them the trace knows.
    names: Option<HashMap<Vec<u8>, u32>>,
    unwritten: Vec<(u32, Vec<u8>)>,
    next_writing: u64,
}

impl Sums {
    const fn new() -> Self {
        Self { since: None, names: None, unwritten: Vec::new(), next_writing: 0 }
    }

    pub fn add(&mut self, place: Attribution, done: &Done<'_>) {
        let number = self.number(done.what);
        let key = (done.device, place.stack, place.layer, place.flags, number);
        let sum = self.since.get_or_insert_default().entry(key).or_default();
        sum.calls += 1;
        sum.nanoseconds += done.nanoseconds;
        sum.bytes += done.bytes;
    }

    /// The number of what ran, by its name, from 1; 0 if there are too many.
    fn number(&mut self, what: What<'_>) -> u32 {
        let copy;
        let name = match what {
            What::Kernel(name) => name,
            What::Copy(from, to) => {
                copy = format!("copy {} to {}", from.name(), to.name());
                copy.as_bytes()
            }
            What::Fill => b"fill",
        };
        let names = self.names.get_or_insert_default();
        if let Some(number) = names.get(name) {
            return *number;
        }
        if names.len() == MAX_NAMES {
            return 0;
        }
        let number = names.len() as u32 + 1;
        names.insert(name.to_vec(), number);
        self.unwritten.push((number, name.to_vec()));
        number
    }

    /// Whether they are to be written now, so that the trace grows slowly.
    pub fn is_due(&self, now: u64) -> bool {
        now >= self.next_writing && self.since.as_ref().is_some_and(|since| !since.is_empty())
    }

    /// Writes what ran since the last time.
    pub fn write(&mut self, recorder: &Recorder) {
        let now = recorder.elapsed_ns();
        let mut bytes = 0;
        for (number, name) in self.unwritten.drain(..) {
            recorder.log.append(encode::kernel(&mut LineBuffer::<4096>::new(), number, &name));
        }
        let mut since: Vec<(Key, Sum)> = self.since.take().unwrap_or_default().into_iter().collect();
        since.sort_unstable_by_key(|(key, _)| *key);
        for ((device, stack, layer, flags, kernel), sum) in since {
            let mut buffer = LineBuffer::<256>::new();
            let work = encode::Work {
                time: now,
                device: device as i32,
                stack,
                layer,
                flags,
                kernel,
                calls: sum.calls,
                nanoseconds: sum.nanoseconds,
                bytes: sum.bytes,
            };
            let line = encode::work(&mut buffer, &work);
            bytes += line.len() as u64;
            recorder.log.append(line);
        }
        self.next_writing = now + (bytes * 1_000_000_000 / BYTES_PER_SECOND).max(1_000_000_000);
    }
}
