//! Host memory in place of device memory, for tests and for machines without a device.
//!
//! A thread copies, optionally at a set speed. The pipeline is the same as for a device.
//!
//! Compute happens on the calling threads, so they wait for copies themselves.

use std::collections::VecDeque;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::interface::{Backend, Event, Stream, Transfer};
use crate::error::{Error, Result};

/// The clock by which a [`Host`] times events and paces copies.
pub trait Clock: Send + Sync {
    /// Returns the current time.
    fn now(&self) -> Instant;

    /// Advances a stopped clock to `time` and returns true.
    ///
    /// Returns false for a running clock; the caller then waits until `time`.
    fn skip_to(&self, _time: Instant) -> bool {
        false
    }
}

/// The system clock.
struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        Instant::now()
    }
}

/// A host thread that copies.
pub struct Host {
    queue: Arc<Queue>,
    clock: Arc<dyn Clock>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Process that owns the copying thread.
    ///
    /// A forked child has no such thread.
    process: u32,
}

/// The only copy stream.
const COPIES: Stream = Stream(u64::MAX);

#[derive(Default)]
struct Queue {
    jobs: Mutex<Jobs>,
    /// Signalled when a job is queued.
    filled: Condvar,
    /// Signalled when a job is done that a thread waits for.
    advanced: Condvar,
    /// Jobs done so far.
    completed: AtomicU64,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    /// Jobs queued so far.
    submitted: u64,
    events: Vec<Mark>,
    free: Vec<u64>,
    sleeping: bool,
    waiters: u32,
    stop: bool,
}

enum Job {
    Copy {
        transfer: Transfer,
        queued: Instant,
    },
    /// Sets the time of an event.
    Mark(usize),
}

#[derive(Clone, Copy, Default)]
struct Mark {
    timed: bool,
    /// Number of completed jobs after which the event is set.
    after: u64,
    at: Option<Instant>,
}

impl Host {
    /// Starts the thread.
    ///
    /// With `bytes_per_second`, no copy is faster than that.
    ///
    /// # Errors
    ///
    /// If the speed is not positive, or the thread cannot be started.
    pub fn new(bytes_per_second: Option<f64>) -> Result<Self> {
        Self::with_clock(bytes_per_second, Arc::new(SystemClock))
    }

    /// Starts the thread, with a clock other than the system clock.
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new).
    pub fn with_clock(bytes_per_second: Option<f64>, clock: Arc<dyn Clock>) -> Result<Self> {
        if let Some(pace) = bytes_per_second
            && !(pace.is_finite() && pace > 0.0)
        {
            return Err(Error::Invalid(format!("{pace} bytes per second is no pace: it has to be positive")));
        }
        let queue = Arc::new(Queue::default());
        let copier =
            Copier { queue: Arc::clone(&queue), clock: Arc::clone(&clock), pace: bytes_per_second, free_at: None };
        let thread = std::thread::Builder::new()
            .name("memlab-copies".into())
            .spawn(move || copier.run())
            .map_err(|error| Error::Failed(format!("no thread for copies could be started ({error})")))?;
        Ok(Self { queue, clock, thread: Mutex::new(Some(thread)), process: std::process::id() })
    }

    /// Stops the thread after its current copy.
    fn stop(&self) {
        if std::process::id() != self.process {
            return;
        }
        let mut jobs = self.queue.jobs.lock();
        jobs.stop = true;
        self.queue.filled.notify_one();
        drop(jobs);
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }

    /// Waits until `after` jobs are done, for at most `longest`.
    ///
    /// Returns true if they are done.
    fn wait_for(&self, after: u64, longest: Duration) -> Result<bool> {
        // Most waits are for a copy that is about to end, and a sleep takes longer than that.
        for _ in 0..SPINS_BEFORE_SLEEP {
            if self.queue.completed.load(Ordering::Acquire) >= after {
                return Ok(true);
            }
            std::hint::spin_loop();
        }
        if std::process::id() != self.process {
            return Err(Error::Failed(
                "this process was forked from the one that loads weights and cannot wait for copies: \
                 make the model in the process that runs it"
                    .into(),
            ));
        }
        let until = Instant::now().checked_add(longest);
        let is_done = || self.queue.completed.load(Ordering::Acquire) >= after;
        let mut jobs = self.queue.jobs.lock();
        jobs.waiters += 1;
        while !is_done() && !jobs.stop {
            match until {
                Some(until) if self.queue.advanced.wait_until(&mut jobs, until).timed_out() => break,
                Some(_) => {}
                None => self.queue.advanced.wait(&mut jobs),
            }
        }
        jobs.waiters -= 1;
        if jobs.stop && !is_done() {
            return Err(Error::Failed("the pipeline was closed while a thread waited for its weights".into()));
        }
        Ok(is_done())
    }
}

const SPINS_BEFORE_SLEEP: u32 = 500;

impl Backend for Host {
    fn create_stream(&self) -> Result<Stream> {
        Ok(COPIES)
    }

    fn destroy_stream(&self, _stream: Stream) {
        self.stop();
    }

    fn create_event(&self, timed: bool) -> Result<Event> {
        let mut jobs = self.queue.jobs.lock();
        let mark = Mark { timed, ..Mark::default() };
        match jobs.free.pop() {
            Some(free) => {
                jobs.events[free as usize] = mark;
                Ok(Event(free))
            }
            None => {
                jobs.events.push(mark);
                Ok(Event(jobs.events.len() as u64 - 1))
            }
        }
    }

    fn destroy_event(&self, event: Event) {
        // In a forked child, a thread that does not exist there may hold the lock.
        if std::process::id() == self.process {
            self.queue.jobs.lock().free.push(event.0);
        }
    }

    fn record(&self, event: Event, stream: Stream) -> Result<()> {
        let mut jobs = self.queue.jobs.lock();
        let index = event.0 as usize;
        let timed = jobs.events[index].timed;
        if stream != COPIES {
            // The calling thread's compute is already done.
            jobs.events[index] = Mark { timed, after: 0, at: timed.then(|| self.clock.now()) };
            return Ok(());
        }
        if timed {
            self.queue.submit(&mut jobs, Job::Mark(index));
        }
        jobs.events[index] = Mark { timed, after: jobs.submitted, at: None };
        Ok(())
    }

    fn wait(&self, stream: Stream, event: Event) -> Result<bool> {
        // Copies need not wait: events of threads are already set, and copies complete in order.
        if stream == COPIES {
            return Ok(true);
        }
        let after = self.queue.jobs.lock().events[event.0 as usize].after;
        Ok(self.queue.completed.load(Ordering::Acquire) >= after)
    }

    fn block(&self, event: Event, longest: Duration) -> Result<bool> {
        let after = self.queue.jobs.lock().events[event.0 as usize].after;
        self.wait_for(after, longest)
    }

    unsafe fn copy(&self, transfer: &Transfer, _stream: Stream) -> Result<()> {
        let job = Job::Copy { transfer: *transfer, queued: self.clock.now() };
        self.queue.submit(&mut self.queue.jobs.lock(), job);
        Ok(())
    }

    fn synchronize(&self, _stream: Stream) -> Result<()> {
        let after = self.queue.jobs.lock().submitted;
        while !self.wait_for(after, Duration::MAX)? {}
        Ok(())
    }

    fn elapsed_ns(&self, from: Event, to: Event) -> Result<u64> {
        while !self.block(to, Duration::MAX)? {}
        let jobs = self.queue.jobs.lock();
        let at = |event: Event| jobs.events[event.0 as usize].at;
        match (at(from), at(to)) {
            (Some(from), Some(to)) => Ok(to.saturating_duration_since(from).as_nanos() as u64),
            _ => Err(Error::Failed("a time was asked of an event that was never recorded".into())),
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Queue {
    fn submit(&self, jobs: &mut MutexGuard<Jobs>, job: Job) {
        jobs.waiting.push_back(job);
        jobs.submitted += 1;
        if jobs.sleeping {
            jobs.sleeping = false;
            self.filled.notify_one();
        }
    }
}

/// The thread that copies.
struct Copier {
    queue: Arc<Queue>,
    clock: Arc<dyn Clock>,
    pace: Option<f64>,
    /// Time at which a bus of the set speed would have finished the last copy.
    free_at: Option<Instant>,
}

impl Copier {
    fn run(mut self) {
        // By default the kernel may delay wake-ups by 50 µs.
        // SAFETY: PR_SET_TIMERSLACK takes a number and changes only the timers of this thread.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000) };
        let queue = Arc::clone(&self.queue);
        let mut jobs = queue.jobs.lock();
        while !jobs.stop {
            let Some(job) = jobs.waiting.pop_front() else {
                jobs.sleeping = true;
                queue.filled.wait(&mut jobs);
                continue;
            };
            match job {
                Job::Mark(event) => jobs.events[event].at = Some(self.clock.now()),
                Job::Copy { transfer, queued } => MutexGuard::unlocked(&mut jobs, || self.copy(&transfer, queued)),
            }
            queue.completed.fetch_add(1, Ordering::Release);
            if jobs.waiters > 0 {
                queue.advanced.notify_all();
            }
        }
        // The remaining jobs are dropped.
        queue.advanced.notify_all();
    }

    fn copy(&mut self, transfer: &Transfer, queued: Instant) {
        let (from, to) = (transfer.from as usize, transfer.to as usize);
        // SAFETY: the caller of `Backend::copy` promises that both ranges are valid until the copy is done, and source and
        // target of a copy do not overlap.
        unsafe {
            ptr::copy_nonoverlapping(
                ptr::with_exposed_provenance::<u8>(from),
                ptr::with_exposed_provenance_mut::<u8>(to),
                transfer.bytes as usize,
            );
        }
        let Some(pace) = self.pace else { return };
        // Start from the earliest possible time, not from the wake-up of this thread: delays of microseconds would add up.
        let begun = self.free_at.map_or(queued, |free| free.max(queued));
        let end = begun + Duration::from_secs_f64(transfer.bytes as f64 / pace);
        let now = self.clock.now();
        if end > now && !self.clock.skip_to(end) {
            let mut jobs = self.queue.jobs.lock();
            while !jobs.stop && !self.queue.filled.wait_until(&mut jobs, end).timed_out() {}
        }
        // A copy slower than the set speed does not make later copies faster.
        self.free_at = Some(end.max(now.checked_sub(MAX_CATCH_UP).unwrap_or(now)));
    }
}

const MAX_CATCH_UP: Duration = Duration::from_millis(1);
