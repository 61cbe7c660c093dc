//! The recorder: the trace of this process, and the definitions that hooks write to it.

pub mod session;
pub mod start;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use memlab_trace::encode::{self, LineBuffer};
use memlab_trace::record::Step;

use crate::intern::Interner;
use crate::limit::card;
use crate::python::state::Python;
use crate::ranges::{open, table::Ranges};
use crate::sampler::Sampler;
use crate::thread_state::ThreadState;
use interpose_base::clock::monotonic_ns;
use interpose_base::log::Log;
use interpose_base::stderr::print_message;
use interpose_driver::device;
use interpose_python::walk::Interpreter;

pub struct Recorder {
    pub log: Log,
    pub interner: Interner,
    pub ranges: Ranges,
    pub python: Python,
    pub sampler: Sampler,
    pub facts: ProcessFacts,
    /// Serial number of recorders across forks, from 1.
    serial: u64,
    /// Start of the trace by [`clock`](interpose_base::clock).
    start: u64,
    last_thread: AtomicU32,
    /// One bit per device ordinal that the trace has defined.
    known_devices: AtomicU64,
    module_deaths: AtomicU64,
    steps: AtomicU64,
    /// True once event recording has ended: the program is being torn down.
    finished: AtomicBool,
}

/// Facts about the process for the header.
pub struct ProcessFacts {
    pub id: String,
    pub pid: u32,
    pub command: Vec<String>,
    pub rank: Option<u32>,
}

impl Recorder {
    /// The Python interpreter whose stacks can be read; `None` without one, or if its version is not supported.
    #[inline]
    pub fn interpreter(&self) -> Option<&'static Interpreter> {
        self.python.trusted()
    }

    /// Nanoseconds since the trace began.
    #[inline]
    pub fn elapsed_ns(&self) -> u64 {
        self.since_start(monotonic_ns())
    }

    /// Converts a time of [`clock`](interpose_base::clock) to nanoseconds since the trace began.
    #[inline]
    pub fn since_start(&self, nanoseconds: u64) -> u64 {
        nanoseconds.saturating_sub(self.start)
    }

    /// Serial number of recorders across forks, from 1.
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// Number of modules that have died and whose address attribution knew.
    #[inline]
    pub fn module_deaths(&self) -> u64 {
        self.module_deaths.load(Ordering::Relaxed)
    }

    pub fn forget_module(&self, module: usize) {
        self.interner.forget_module(module);
        self.module_deaths.fetch_add(1, Ordering::Relaxed);
    }

    /// Asks the interpreter to run the agent, which names new layers.
    pub fn schedule_agent(&self) {
        self.python.schedule();
    }

    /// Writes a limitation of memlab to stderr and to the trace.
    pub fn warn(&self, what: &str) {
        print_message(what);
        self.log.append(encode::warning(&mut LineBuffer::<1024>::new(), what));
    }

    /// Returns true if the trace has defined a device.
    pub fn knows_device(&self, device: i32) -> bool {
        let bit = 1u64.checked_shl(device as u32).unwrap_or(0);
        self.known_devices.load(Ordering::Relaxed) & bit != 0
    }

    /// Writes a device's definition, before its first event.
    pub fn define_device(&self, device: i32) {
        let bit = 1u64.checked_shl(device as u32).unwrap_or(0);
        if self.known_devices.fetch_or(bit, Ordering::Relaxed) & bit != 0 {
            return;
        }
        let facts = device::device_facts(device);
        let bus_id = facts.bus_id.as_deref().map(str::as_bytes);
        let mut line = LineBuffer::<1024>::new();
        self.log.append(encode::device(&mut line, device, &facts.name, facts.total_bytes, bus_id));
        self.sampler.watch(device, facts.bus_id);
        card::record(&self.log, device);
    }

    /// Samples the use of the cards that changed, or of all.
    ///
    /// The calling thread must be inside memlab.
    pub fn sample_cards(&self, always: bool) {
        self.sampler.sample(&self.log, self.facts.pid, || self.elapsed_ns(), always);
    }

    #[cold]
    fn define_thread(&self, thread: &mut ThreadState) {
        thread.id = self.last_thread.fetch_add(1, Ordering::Relaxed) + 1;
        let mut name = [0u8; 32];
        // SAFETY: the name is at most 16 bytes with its NUL.
        unsafe { libc::pthread_getname_np(libc::pthread_self(), name.as_mut_ptr().cast(), name.len()) };
        let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let length = name.iter().position(|&byte| byte == 0).unwrap_or(0);
        self.log.append(encode::thread(&mut LineBuffer::<256>::new(), thread.id, tid, &name[..length]));
        self.find_range(thread); // It may have entered ranges before the recording.
    }

    /// Finds the thread's range after it entered or left one.
    fn find_range(&self, thread: &mut ThreadState) {
        let backward = thread.backward;
        let around = backward.running.then_some((backward.open_ranges as usize, backward.caller_range));
        let (open, innermost) = open::innermost(self.serial, &self.log, &self.ranges, around);
        (thread.ranges.open, thread.ranges.innermost) = (open, innermost);
        thread.ranges.now = thread.range();
    }

    /// Ends the recording of events.
    ///
    /// Later frees belong to process teardown and are not recorded.
    pub fn stop_events(&self) {
        self.finished.store(true, Ordering::Relaxed);
    }

    /// Returns true if event recording has ended.
    pub fn is_finished(&self) -> bool {
        self.finished.load(Ordering::Relaxed)
    }

    /// Number of optimizer steps that have ended.
    pub fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    /// Records an optimizer step that ended on the calling thread.
    ///
    /// Returns the number of the steps that have ended.
    pub fn step(&self, thread: u32, is_untimed: bool) -> u64 {
        let index = self.steps.fetch_add(1, Ordering::Relaxed);
        let step = Step { time: self.elapsed_ns(), thread, index, is_untimed };
        self.log.append(encode::step(&mut LineBuffer::<128>::new(), &step));
        index + 1
    }

    /// Writes the last line and truncates the file.
    ///
    /// `code` is the exit code.
    pub fn write_end_and_close(&self, code: i32) {
        self.log.append(encode::end(&mut LineBuffer::<128>::new(), self.elapsed_ns(), Some(code), None));
        self.log.file().close();
    }
}
