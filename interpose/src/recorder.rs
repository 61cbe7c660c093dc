//! The recorder: turns the events of hooks into lines of the log.

use std::io;
use std::path::Path;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use memlab_trace::encode::{self, Header, LineBuffer};
use memlab_trace::record::Flags;
use parking_lot::Mutex;

use crate::attribution::result::Attribution;
use crate::config::{self, config, enabled};
use crate::cuda::device;
use crate::intern::Interner;
use crate::limit::card;
use crate::locks;
use crate::log::Log;
use crate::log::place::{Naming, is_refusal};
use crate::panics;
use crate::python::state::Python;
use crate::python::walk::Interpreter;
use crate::recursion::RecursionGuard;
use crate::sampler::Sampler;
use crate::stderr::say;
use crate::thread_state::{self, ThreadState};

pub struct Recorder {
    pub log: Log,
    pub interner: Interner,
    pub python: Python,
    pub sampler: Sampler,
    pub facts: ProcessFacts,
    /// Counts recorders across forks, from 1.
    serial: u64,
    start: libc::timespec,
    last_thread: AtomicU32,
    /// One bit per device ordinal that the trace has defined.
    known_devices: AtomicU64,
    module_deaths: AtomicU64,
    steps: AtomicU64,
    /// No more events are recorded: the program is being torn down.
    finished: AtomicBool,
}

/// Facts about the process for the header.
pub struct ProcessFacts {
    pub id: String,
    pub pid: u32,
    pub command: Vec<String>,
    pub rank: Option<u32>,
}

static CURRENT: AtomicPtr<Recorder> = AtomicPtr::new(ptr::null_mut());
static CREATING: Mutex<()> = Mutex::new(());
static SERIALS: AtomicU64 = AtomicU64::new(0);
/// Set when no recorder could be created: this process does not try again.
static FAILED: AtomicBool = AtomicBool::new(false);
/// See [`on_start`].
static ON_START: OnceLock<fn(&'static Recorder)> = OnceLock::new();
/// Messages for the user, shown once if this process records.
static WARNINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Called with each new recorder, to start the control thread and the agent, by the thread that creates the recorder.
/// That thread may hold any lock of the program's.
pub fn on_start(start: fn(&'static Recorder)) {
    let _ = ON_START.set(start);
}

/// Queues a message for the user, shown once if this process records: shells that start the program do not show it.
pub fn warn_when_recording(warning: String) {
    WARNINGS.lock().push(warning);
}

/// A hook's access to the recorder and the calling thread's state. Hooks called on this thread are ignored until it is
/// dropped.
pub struct Session {
    pub recorder: &'static Recorder,
    pub thread: &'static mut ThreadState,
    _guard: RecursionGuard,
}

impl Recorder {
    /// Enters memlab from a hook, creating the recorder if this is the process's first use of CUDA. `None` if
    /// re-entered, or if nothing is recorded.
    #[inline]
    pub fn enter() -> Option<Session> {
        let guard = RecursionGuard::enter()?;
        let recorder = match Self::current() {
            Some(recorder) => recorder,
            None => panics::catch(Self::create).flatten()?,
        };
        Self::session(recorder, guard)
    }

    /// Like [`enter`](Self::enter), but only if there is a recorder already.
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
        // SAFETY: the state is this thread's own, and the guard makes this the only session on it.
        let thread = unsafe { thread_state::state(recorder.serial).as_mut()? };
        if thread.id == 0 {
            recorder.define_thread(thread);
        }
        Some(Session { recorder, thread, _guard: guard })
    }

    #[inline]
    pub fn current() -> Option<&'static Self> {
        // SAFETY: null, or a recorder that is never freed.
        unsafe { CURRENT.load(Ordering::Acquire).as_ref() }
    }

    #[cold]
    fn create() -> Option<&'static Self> {
        if !enabled() || FAILED.load(Ordering::Relaxed) {
            return None;
        }
        let _one_at_a_time = CREATING.lock();
        if let Some(recorder) = Self::current() {
            return Some(recorder);
        }
        match Self::open() {
            Ok(recorder) => {
                let recorder: &'static Self = Box::leak(Box::new(recorder));
                CURRENT.store(ptr::from_ref(recorder).cast_mut(), Ordering::Release);
                if let Some(start) = ON_START.get() {
                    start(recorder);
                }
                Some(recorder)
            }
            Err(error) => {
                FAILED.store(true, Ordering::Relaxed);
                say(&format!("{error}: the program runs without a trace"));
                None
            }
        }
    }

    fn open() -> io::Result<Self> {
        let config = config();
        if let Some(error) = &config.trace_max_error {
            say(&format!("MEMLAB_TRACE_MAX: {error}; traces take up to 2 GiB"));
        }
        if let Some(error) = &config.host_max_error {
            say(&format!("MEMLAB_HOST_MAX: {error}; host memory is not limited"));
        }
        for warning in std::mem::take(&mut *WARNINGS.lock()) {
            say(&warning);
        }
        let raw_command = std::fs::read("/proc/self/cmdline").unwrap_or_default();
        let command: Vec<String> = raw_command
            .split(|&byte| byte == 0)
            .filter(|argument| !argument.is_empty())
            .map(|argument| String::from_utf8_lossy(argument).into_owned())
            .collect();
        let wanted = config.output_path(&config::program_name(&command));
        let start = monotonic();
        let start_unix_ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        let pid = std::process::id();
        let facts = ProcessFacts {
            id: format!("{:016x}", mix(start_unix_ns ^ u64::from(pid).rotate_left(40))),
            pid,
            command,
            rank: config::rank(),
        };
        let (directory, host) = (std::env::current_dir().unwrap_or_default(), config::host_name());
        let header = Header {
            version: env!("CARGO_PKG_VERSION"),
            id: &facts.id,
            pid,
            parent_pid: std::os::unix::process::parent_id(),
            start_unix_ns,
            command: &raw_command,
            directory: directory.as_os_str().as_encoded_bytes(),
            host: host.as_bytes(),
            rank: facts.rank,
            local_rank: config::local_rank(),
            world_size: config::world_size(),
        };
        let mut line = LineBuffer::<8192>::new();
        let header = encode::header(&mut line, &header);
        let log = create_log(&wanted, config.run, config.trace_max, header)?;
        log.file().bound_alone(config.trace_max, 0, 0);
        Ok(Self {
            log,
            interner: Interner::default(),
            python: Python::default(),
            sampler: Sampler::default(),
            facts,
            serial: SERIALS.fetch_add(1, Ordering::Relaxed) + 1,
            start,
            last_thread: AtomicU32::new(0),
            known_devices: AtomicU64::new(0),
            module_deaths: AtomicU64::new(0),
            steps: AtomicU64::new(0),
            finished: AtomicBool::new(false),
        })
    }

    /// The Python interpreter whose stacks can be read; `None` if there is none, or its version is not supported.
    #[inline]
    pub fn interpreter(&self) -> Option<&'static Interpreter> {
        self.python.trusted()
    }

    /// Nanoseconds since the trace began.
    #[inline]
    pub fn elapsed_ns(&self) -> u64 {
        let now = monotonic();
        let seconds = (now.tv_sec - self.start.tv_sec) as u64;
        (seconds * 1_000_000_000).wrapping_add_signed(now.tv_nsec - self.start.tv_nsec)
    }

    /// Counts recorders across forks, from 1.
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// How many modules have died whose address attribution knew.
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

    /// Writes a limitation of memlab's to stderr and to the trace.
    pub fn warn(&self, what: &str) {
        say(what);
        self.log.append(encode::warning(&mut LineBuffer::<1024>::new(), what));
    }

    /// Whether the trace has defined a device.
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

    #[cold]
    fn define_thread(&self, thread: &mut ThreadState) {
        thread.id = self.last_thread.fetch_add(1, Ordering::Relaxed) + 1;
        let mut name = [0u8; 32];
        // SAFETY: the name is at most 16 bytes with its NUL.
        unsafe { libc::pthread_getname_np(libc::pthread_self(), name.as_mut_ptr().cast(), name.len()) };
        let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let length = name.iter().position(|&byte| byte == 0).unwrap_or(0);
        self.log.append(encode::thread(&mut LineBuffer::<256>::new(), thread.id, tid, &name[..length]));
    }

    /// Ends the recording of events. Later frees belong to process teardown and are not recorded.
    pub fn stop_events(&self) {
        self.finished.store(true, Ordering::Relaxed);
    }

    /// Whether the recording of events has ended.
    pub fn is_finished(&self) -> bool {
        self.finished.load(Ordering::Relaxed)
    }

    /// An optimizer step ended on the calling thread.
    pub fn step(&self, thread: u32) {
        let index = self.steps.fetch_add(1, Ordering::Relaxed);
        self.log.append(encode::step(&mut LineBuffer::<128>::new(), self.elapsed_ns(), thread, index));
    }

    /// Writes the last line and truncates the file. `code` is the exit code.
    pub fn write_end_and_close(&self, code: i32) {
        self.log.append(encode::end(&mut LineBuffer::<128>::new(), self.elapsed_ns(), Some(code), None));
        self.log.file().close();
    }
}

impl Session {
    #[inline]
    pub fn elapsed_ns(&self) -> u64 {
        self.recorder.elapsed_ns()
    }

    #[inline]
    pub fn block_allocated(&self, attribution: Attribution, device: i32, address: u64, bytes: u64) {
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

    /// A block that was allocated before memlab was loaded.
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
}

/// Called in a forked child, which writes nothing until it uses CUDA, and then has its own trace.
pub fn reset_in_child() {
    if let Some(parents) = Recorder::current() {
        parents.log.file().reset_all_in_child();
    }
    CURRENT.store(ptr::null_mut(), Ordering::Release);
    FAILED.store(false, Ordering::Relaxed);
    locks::unlock_in_child(&CREATING);
    locks::unlock_in_child(&WARNINGS);
}

/// Opens the log at `wanted` or, if that fails, in the temporary folder, with a message. A name that cannot be right (a
/// device, a file of the user's) is refused instead.
fn create_log(wanted: &Path, run: Option<u64>, most: u64, header: &[u8]) -> io::Result<Log> {
    let absolute = std::env::current_dir().map_or_else(|_| wanted.to_owned(), |directory| directory.join(wanted));
    let error = match Log::create(&absolute, Naming::AsAsked { run }, most, header) {
        Ok(log) => return Ok(log),
        Err(error) => error,
    };
    let why = format!("cannot write {} ({error})", absolute.display());
    let name = wanted.file_name().map_or_else(|| "memlab.jsonl".into(), ToOwned::to_owned);
    let instead = std::env::temp_dir().join(name);
    if !is_refusal(&error)
        && let Ok(log) = Log::create(&instead, Naming::Anything { run }, most, header)
    {
        say(&format!("{why}: the trace goes to {}", log.file().path.display()));
        return Ok(log);
    }
    Err(io::Error::new(error.kind(), why))
}

fn monotonic() -> libc::timespec {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock exists and `now` is writable.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now
}

/// Mixes the bits of a seed (the finaliser of splitmix64).
fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
