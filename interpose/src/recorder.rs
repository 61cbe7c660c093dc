//! The recorder: made when the process first uses CUDA, it turns what hooks see into lines of the log.

use std::io;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use memlab_trace::encode::{self, Header, LineBuffer};
use memlab_trace::record::Flags;
use parking_lot::Mutex;

use crate::attribution;
use crate::condense;
use crate::config;
use crate::cuda::driver_memory::DriverMemory;
use crate::cuda::info;
use crate::intern::Interner;
use crate::lifecycle;
use crate::log::{Log, Naming, is_refusal};
use crate::python::Python;
use crate::python::walk::Interpreter;
use crate::sampler::Sampler;
use crate::thread::{self, Guard, ThreadState};
use crate::torch;

pub struct Recorder {
    pub log: Log,
    pub interner: Interner,
    pub driver_memory: Mutex<DriverMemory>,
    pub python: Python,
    pub sampler: Sampler,
    pub torch: torch::expected::Check,
    pub facts: ProcessFacts,
    /// Distinguishes this recorder from that of the process this one was forked from.
    serial: u64,
    start: libc::timespec,
    last_thread: AtomicU32,
    /// One bit per device ordinal that the trace knows.
    known_devices: AtomicU64,
    module_deaths: AtomicU64,
    steps: AtomicU64,
    /// No more events: the program is being torn down.
    finished: AtomicBool,
}

/// What the header says of the process.
pub struct ProcessFacts {
    pub id: String,
    pub pid: u32,
    pub command: Vec<String>,
    pub rank: Option<u32>,
}

static CURRENT: AtomicPtr<Recorder> = AtomicPtr::new(ptr::null_mut());
static CREATING: Mutex<()> = Mutex::new(());
static SERIALS: AtomicU64 = AtomicU64::new(0);
/// Set when no recorder could be made: not tried again in this process.
static HOPELESS: AtomicBool = AtomicBool::new(false);

/// A hook's stay inside memlab: the recorder and the calling thread's state, until dropped.
pub struct Session {
    pub recorder: &'static Recorder,
    pub thread: &'static mut ThreadState,
    _guard: Guard,
}

impl Recorder {
    /// Enters memlab from a hook, making the recorder if this is the process's first use of CUDA. `None`: re-entered, or
    /// there is no recording.
    #[inline]
    pub fn enter() -> Option<Session> {
        let guard = Guard::enter()?;
        let recorder = match Self::current() {
            Some(recorder) => recorder,
            None => crate::quietly(Self::create).flatten()?,
        };
        Self::session(recorder, guard)
    }

    /// Like [`enter`](Self::enter), but only once there is a recorder.
    #[inline]
    pub fn enter_if_recording() -> Option<Session> {
        let recorder = Self::current()?;
        Self::session(recorder, Guard::enter()?)
    }

    #[inline]
    fn session(recorder: &'static Recorder, guard: Guard) -> Option<Session> {
        if recorder.finished.load(Ordering::Relaxed) {
            return None;
        }
        // SAFETY: the state is this thread's own, and the guard makes this the only session on it.
        let thread = unsafe { thread::state(recorder.serial).as_mut()? };
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
        if !crate::enabled() || HOPELESS.load(Ordering::Relaxed) {
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
                recorder.python.start(&recorder.log);
                recorder.torch.run(recorder);
                crate::control::start(recorder);
                lifecycle::watch_exit();
                Some(recorder)
            }
            Err(error) => {
                HOPELESS.store(true, Ordering::Relaxed);
                crate::say(&format!("{error}: the program runs without a trace"));
                None
            }
        }
    }

    fn open() -> io::Result<Self> {
        let config = crate::config();
        if let Some(error) = &config.trace_max_error {
            crate::say(&format!("MEMLAB_TRACE_MAX: {error}; traces take up to 2 GiB"));
        }
        if let Some(error) = &config.host_max_error {
            crate::say(&format!("MEMLAB_HOST_MAX: {error}; host memory is not limited"));
        }
        if let Some(complaint) = crate::limit::complaint() {
            crate::say(&complaint);
        }
        let raw_command = std::fs::read("/proc/self/cmdline").unwrap_or_default();
        let command: Vec<String> = raw_command
            .split(|&byte| byte == 0)
            .filter(|argument| !argument.is_empty())
            .map(|argument| String::from_utf8_lossy(argument).into_owned())
            .collect();
        let wanted = config.output_path(&config::program_name(&command));
        let start = now();
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
        condense::bound(log.file(), config.trace_max);
        Ok(Self {
            log,
            interner: Interner::default(),
            driver_memory: Mutex::default(),
            python: Python::default(),
            sampler: Sampler::default(),
            torch: torch::expected::Check::default(),
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

    /// The Python whose stacks can be read; `None` where there is none, or none this memlab knows.
    #[inline]
    pub fn python(&self) -> Option<&'static Interpreter> {
        self.python.trusted()
    }

    /// Nanoseconds since the trace began.
    #[inline]
    pub fn now(&self) -> u64 {
        let now = now();
        let seconds = (now.tv_sec - self.start.tv_sec) as u64;
        (seconds * 1_000_000_000).wrapping_add_signed(now.tv_nsec - self.start.tv_nsec)
    }

    /// Which recorder of this process and those it was forked from it is; counted from 1.
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// How often a module has died whose address attribution knew.
    #[inline]
    pub fn module_deaths(&self) -> u64 {
        self.module_deaths.load(Ordering::Relaxed)
    }

    pub fn forget_module(&self, module: usize) {
        self.interner.forget_module(module);
        self.module_deaths.fetch_add(1, Ordering::Relaxed);
    }

    /// Asks for the agent to name new layers, at the interpreter's next convenience.
    pub fn want_names(&self) {
        self.python.schedule();
    }

    /// Tells the user and the trace about something memlab cannot do here.
    pub fn warn(&self, what: &str) {
        crate::say(what);
        self.log.append(encode::warning(&mut LineBuffer::<1024>::new(), what));
    }

    /// Whether the trace says what a device is.
    pub fn knows_device(&self, device: i32) -> bool {
        let bit = 1u64.checked_shl(device as u32).unwrap_or(0);
        self.known_devices.load(Ordering::Relaxed) & bit != 0
    }

    /// Says what a device is, the first time it is met.
    pub fn define_device(&self, device: i32) {
        let bit = 1u64.checked_shl(device as u32).unwrap_or(0);
        if self.known_devices.fetch_or(bit, Ordering::Relaxed) & bit != 0 {
            return;
        }
        let facts = info::device_facts(device);
        let bus_id = facts.bus_id.as_deref().map(str::as_bytes);
        let mut line = LineBuffer::<1024>::new();
        self.log.append(encode::device(&mut line, device, &facts.name, facts.total_bytes, bus_id));
        self.sampler.watch(device, facts.bus_id);
        crate::limit::record(self, device);
    }

    #[cold]
    fn define_thread(&self, thread: &mut ThreadState) {
        thread.id = self.last_thread.fetch_add(1, Ordering::Relaxed) + 1;
        let mut name = [0u8; 32];
        // SAFETY: gettid has no arguments; the name is at most 16 bytes with its NUL.
        let tid = unsafe {
            libc::pthread_getname_np(libc::pthread_self(), name.as_mut_ptr().cast(), name.len());
            libc::gettid() as u32
        };
        let length = name.iter().position(|&byte| byte == 0).unwrap_or(0);
        self.log.append(encode::thread(&mut LineBuffer::<256>::new(), thread.id, tid, &name[..length]));
    }

    /// Ends the recording of events; what is torn down afterwards is not the program's doing.
    pub fn finish(&self) {
        self.finished.store(true, Ordering::Relaxed);
    }

    /// Whether Python is being torn down, or the process.
    pub fn is_finished(&self) -> bool {
        self.finished.load(Ordering::Relaxed)
    }

    /// An optimizer step ended on the calling thread.
    pub fn step(&self, thread: u32) {
        let index = self.steps.fetch_add(1, Ordering::Relaxed);
        self.log.append(encode::step(&mut LineBuffer::<128>::new(), self.now(), thread, index));
    }

    /// Writes the last line and trims the file. `code` is the exit code.
    pub fn end(&self, code: i32) {
        self.finish();
        self.interner.sources.write(&self.log);
        condense::finish();
        self.end_at_once(code);
    }

    /// The same for a process that will not wait, and may have been interrupted anywhere by a signal.
    pub fn end_at_once(&self, code: i32) {
        self.finish();
        condense::say_lost(self);
        self.log.append(encode::end(&mut LineBuffer::<128>::new(), self.now(), Some(code), None));
        self.log.file().close();
    }
}

impl Session {
    #[inline]
    pub fn now(&self) -> u64 {
        self.recorder.now()
    }

    #[inline]
    pub fn block_allocated(&mut self, device: i32, address: u64, bytes: u64) {
        let place = attribution::here(self.recorder, self.thread);
        let mut line = LineBuffer::<192>::new();
        self.recorder.log.append(encode::alloc(
            &mut line,
            self.recorder.now(),
            self.thread.id,
            device,
            address,
            bytes,
            place.stack,
            place.layer,
            place.flags,
        ));
    }

    /// A block that was handed out before memlab was loaded.
    pub fn block_found(&self, device: i32, address: u64, bytes: u64) {
        let mut line = LineBuffer::<192>::new();
        let (time, thread) = (self.now(), self.thread.id);
        self.recorder.log.append(encode::alloc(&mut line, time, thread, device, address, bytes, 0, 0, Flags::BEFORE));
    }

    #[inline]
    pub fn block_freed(&mut self, device: i32, address: u64) {
        let mut line = LineBuffer::<192>::new();
        let now = self.recorder.now();
        self.recorder.log.append(encode::free(&mut line, now, self.thread.id, device, address));
    }

    pub fn out_of_memory(&mut self, device: i32, requested: u64, allocated: u64, reserved: u64) {
        // It may be the first that is heard of the device.
        self.recorder.define_device(device);
        self.recorder.sampler.driver_memory_changed();
        let place = attribution::here(self.recorder, self.thread);
        let mut line = LineBuffer::<256>::new();
        self.recorder.log.append(encode::oom(
            &mut line,
            self.recorder.now(),
            self.thread.id,
            device,
            requested,
            allocated,
            reserved,
            place.stack,
            place.layer,
        ));
    }
}

/// A forked child is silent until it uses CUDA, then it has a trace of its own. Runs in the child, whose only thread is
/// the one that forked.
pub fn forget_in_child() {
    if let Some(parents) = Recorder::current() {
        parents.log.file().forget_all_in_child();
    }
    CURRENT.store(ptr::null_mut(), Ordering::Release);
    HOPELESS.store(false, Ordering::Relaxed);
    lifecycle::free_in_child(&CREATING);
    condense::forget_in_child();
}

/// Opens the log at `wanted` or, where that cannot be, in the temporary folder, saying so. A name that cannot be right
/// (a device, a file of the user's) is refused instead.
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
        crate::say(&format!("{why}: the trace goes to {}", log.file().path.display()));
        return Ok(log);
    }
    Err(io::Error::new(error.kind(), why))
}

fn now() -> libc::timespec {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock exists and `now` is writable.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now
}

/// Spreads the bits of a seed (the finaliser of splitmix64).
fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
