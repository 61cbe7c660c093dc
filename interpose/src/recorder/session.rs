//! Entry of a hook into memlab, and the events that it writes.

use std::sync::atomic::Ordering;

use memlab_trace::encode::{self, DriverAlloc, LineBuffer};
use memlab_trace::record::{DriverKind, Flags, GraphCaptured, GraphGone};

use super::Recorder;
use crate::attribution::result::Attribution;
use crate::thread_state::{self, ThreadState};
use interpose_base::panics;
use interpose_base::recursion::RecursionGuard;

/// A hook's access to the recorder and the calling thread's state.
///
/// Hooks called on this thread are ignored until it is dropped.
pub struct Session {
    pub recorder: &'static Recorder,
    pub thread: &'static mut ThreadState,
    _guard: RecursionGuard,
}

/// Driver memory, as described by its event.
pub struct DriverBlock {
    pub device: i32,
    pub bytes: u64,
    pub kind: DriverKind,
    pub call: &'static str,
    pub library: &'static str,
    pub attribution: Attribution,
    /// Capture of the CUDA graph for whose pool the memory was taken; 0: none.
    pub graph: u64,
    /// PyTorch's number of the stream for which the memory was taken; 0: the default stream.
    pub stream: u64,
}

impl Recorder {
    /// Enters memlab from a hook, creating the recorder if this is the process's first use of CUDA.
    ///
    /// Returns `None` if re-entered, or without a recording.
    #[inline]
    pub fn enter() -> Option<Session> {
        let guard = RecursionGuard::enter()?;
        let recorder = match Self::current() {
            Some(recorder) => recorder,
            None => panics::catch(Self::create).flatten()?,
        };
        Self::session(recorder, guard)
    }

    /// Like [`enter`](Self::enter), but only if a recorder already exists.
    #[inline]
    pub fn enter_if_recording() -> Option<Session> {
        let recorder = Self::current()?;
        Self::session(recorder, RecursionGuard::enter()?)
    }

    #[inline]
    fn session(recorder: &'static Recorder, guard: RecursionGuard) -> Option<Session> {
        if recorder.finished.load(Ordering::Relaxed) {
            return None;
        }
        // SAFETY: the state belongs to this thread, and the guard makes this the only session on it.
        let thread = unsafe { thread_state::state(recorder.serial).as_mut()? };
        if thread.id == 0 {
            recorder.define_thread(thread);
        }
        Some(Session { recorder, thread, _guard: guard })
    }
}

impl Session {
    #[inline]
    pub fn elapsed_ns(&self) -> u64 {
        self.recorder.elapsed_ns()
    }

    /// Updates the range after the thread entered or left one.
    pub fn ranges_changed(&mut self) {
        self.recorder.find_range(self.thread);
        self.note_range();
    }

    /// Writes the range in which the thread's events count from now on, if it has changed.
    #[inline]
    fn note_range(&self) {
        let ranges = &self.thread.ranges;
        if ranges.now != ranges.in_trace.get() {
            self.write_range();
        }
    }

    #[cold]
    fn write_range(&self) {
        let ranges = &self.thread.ranges;
        ranges.in_trace.set(ranges.now);
        let mut line = LineBuffer::<128>::new();
        self.recorder.log.append(encode::in_range(&mut line, self.elapsed_ns(), self.thread.id, ranges.now));
    }

    #[inline]
    pub fn block_allocated(&self, attribution: Attribution, device: i32, address: u64, bytes: u64) {
        self.note_range();
        let mut line = LineBuffer::<192>::new();
        self.recorder.log.append(encode::alloc(
            &mut line,
            self.recorder.elapsed_ns(),
            self.thread.id,
            device,
            address,
            bytes,
            attribution.stack,
            attribution.layer,
            attribution.flags,
        ));
    }

    /// Records a block that was allocated before memlab was loaded.
    pub fn block_found(&self, device: i32, address: u64, bytes: u64) {
        let mut line = LineBuffer::<192>::new();
        let (time, thread) = (self.elapsed_ns(), self.thread.id);
        self.recorder.log.append(encode::alloc(&mut line, time, thread, device, address, bytes, 0, 0, Flags::BEFORE));
    }

    #[inline]
    pub fn block_freed(&self, device: i32, address: u64) {
        let mut line = LineBuffer::<192>::new();
        let now = self.recorder.elapsed_ns();
        self.recorder.log.append(encode::free(&mut line, now, self.thread.id, device, address));
    }

    pub fn out_of_memory(&self, attribution: Attribution, device: i32, requested: u64, allocated: u64, reserved: u64) {
        self.recorder.sampler.driver_memory_changed();
        let mut line = LineBuffer::<256>::new();
        self.recorder.log.append(encode::oom(
            &mut line,
            self.recorder.elapsed_ns(),
            self.thread.id,
            device,
            requested,
            allocated,
            reserved,
            attribution.stack,
            attribution.layer,
        ));
    }

    /// Records that the program copied device memory to the host.
    pub fn read_back(&self, stack: u32, bytes: u64) {
        let mut line = LineBuffer::<128>::new();
        self.recorder.log.append(encode::read_back(&mut line, self.elapsed_ns(), self.thread.id, bytes, stack));
    }

    /// Records memory that the driver handed out.
    ///
    /// For `cuMemCreate`d memory, `address` is memlab's number for it.
    pub fn driver_allocated(&self, address: u64, memory: &DriverBlock) {
        self.note_range(); // It may be a PyTorch block.
        let event = DriverAlloc {
            time: self.elapsed_ns(),
            thread: self.thread.id,
            device: memory.device,
            address,
            bytes: memory.bytes,
            kind: memory.kind,
            call: memory.call.as_bytes(),
            library: memory.library.as_bytes(),
            stack: memory.attribution.stack,
            layer: memory.attribution.layer,
            flags: memory.attribution.flags,
            graph: memory.graph,
            stream: memory.stream,
        };
        self.recorder.log.append(encode::driver_alloc(&mut LineBuffer::<512>::new(), &event));
    }

    /// Records memory that the driver is about to take back.
    ///
    /// `address` is as for [`driver_allocated`](Self::driver_allocated).
    pub fn driver_freed(&self, device: i32, address: u64, kind: DriverKind) {
        let (time, thread) = (self.elapsed_ns(), self.thread.id);
        let mut line = LineBuffer::<256>::new();
        self.recorder.log.append(encode::driver_free(&mut line, time, thread, device, address, kind));
    }

    /// Records that PyTorch has captured a CUDA graph with this pool.
    pub fn graph_captured(&self, device: i32, graph: u64, pool: (u64, u64), stack: u32) {
        let (time, thread) = (self.elapsed_ns(), self.thread.id);
        let event = GraphCaptured { time, thread, device, graph, pool, stack };
        self.recorder.log.append(encode::graph_captured(&mut LineBuffer::<256>::new(), &event));
    }

    pub fn graph_gone(&self, device: i32, graph: u64) {
        let event = GraphGone { time: self.elapsed_ns(), thread: self.thread.id, device, graph };
        self.recorder.log.append(encode::graph_gone(&mut LineBuffer::<256>::new(), &event));
    }

    /// Records a mapping of `cuMemCreate`d memory.
    pub fn driver_mapped(&self, device: i32, address: u64, bytes: u64, physical: u64) {
        let (time, thread) = (self.elapsed_ns(), self.thread.id);
        let mut line = LineBuffer::<256>::new();
        self.recorder.log.append(encode::map(&mut line, time, thread, device, address, bytes, physical));
    }

    pub fn driver_unmapped(&self, device: i32, address: u64, bytes: u64) {
        let (time, thread) = (self.elapsed_ns(), self.thread.id);
        let mut line = LineBuffer::<256>::new();
        self.recorder.log.append(encode::unmap(&mut line, time, thread, device, address, bytes));
    }
}
