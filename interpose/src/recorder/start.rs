//! Starts a recording: opens the trace, writes its header, and creates the recorder.

use std::io;
use std::path::Path;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use memlab_trace::encode::{self, Header, LineBuffer};
use parking_lot::Mutex;

use super::{ProcessFacts, Recorder};
use crate::intern::Interner;
use crate::python::state::Python;
use crate::ranges::table::Ranges;
use crate::sampler::Sampler;
use interpose_base::clock::{monotonic_ns, unix_ns};
use interpose_base::config::{self, config, enabled, trace_max};
use interpose_base::locks;
use interpose_base::log::Log;
use interpose_base::log::trace_path::{self, Naming, is_refusal};
use interpose_base::stderr::print_message;

static CURRENT: AtomicPtr<Recorder> = AtomicPtr::new(ptr::null_mut());
static CREATING: Mutex<()> = Mutex::new(());
static SERIALS: AtomicU64 = AtomicU64::new(0);
/// True when no recorder could be created: this process does not try again.
static FAILED: AtomicBool = AtomicBool::new(false);
/// See [`on_start`].
static ON_START: OnceLock<fn(&'static Recorder)> = OnceLock::new();
/// Messages for the user, shown once if this process records.
static WARNINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Sets a function that is called with each new recorder, to start the control thread and the agent.
///
/// The thread that creates the recorder calls it, and may hold any lock of the program.
pub fn on_start(start: fn(&'static Recorder)) {
    let _ = ON_START.set(start);
}

/// Queues a message for the user, shown once if this process records.
///
/// Shells that start the program do not show it.
pub fn warn_when_recording(warning: String) {
    WARNINGS.lock().push(warning);
}

impl Recorder {
    #[inline]
    pub fn current() -> Option<&'static Self> {
        // SAFETY: null, or a recorder that is never freed.
        unsafe { CURRENT.load(Ordering::Acquire).as_ref() }
    }

    #[cold]
    pub(super) fn create() -> Option<&'static Self> {
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
                print_message(&format!("{error}: the program runs without a trace"));
                None
            }
        }
    }

    fn open() -> io::Result<Self> {
        let config = config();
        if let Some(error) = &config.trace_max_error {
            print_message(&format!("MEMLAB_TRACE_MAX: {error}; the limit of a trace is 2 GiB"));
        }
        if let Some(error) = &config.host_max_error {
            print_message(&format!("MEMLAB_HOST_MAX: {error}; no limit on host memory"));
        }
        for warning in std::mem::take(&mut *WARNINGS.lock()) {
            print_message(&warning);
        }
        let raw_command = std::fs::read("/proc/self/cmdline").unwrap_or_default();
        let command: Vec<String> = raw_command
            .split(|&byte| byte == 0)
            .filter(|argument| !argument.is_empty())
            .map(|argument| String::from_utf8_lossy(argument).into_owned())
            .collect();
        let wanted = config::output_path(&config::output(), &config::program_name(&command));
        let start = monotonic_ns();
        let start_unix_ns = unix_ns();
        let pid = std::process::id();
        let facts = ProcessFacts {
            id: format!("{:016x}", fastrand::Rng::with_seed(start_unix_ns ^ u64::from(pid).rotate_left(40)).u64(..)),
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
            run: config.run.as_deref(),
            command: &raw_command,
            directory: directory.as_os_str().as_encoded_bytes(),
            host: host.as_bytes(),
            rank: facts.rank,
            local_rank: config::local_rank(),
            world_size: config::world_size(),
        };
        let mut line = LineBuffer::<8192>::new();
        let header = encode::header(&mut line, &header);
        let log = create_log(&wanted, config.run.as_deref(), header)?;
        Ok(Self {
            log,
            interner: Interner::default(),
            ranges: Ranges::default(),
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
}

/// Called in a forked child, which writes nothing until it uses CUDA; then it gets a separate trace.
pub fn reset_in_child() {
    if let Some(parents) = Recorder::current() {
        parents.log.file().reset_all_in_child();
    }
    CURRENT.store(ptr::null_mut(), Ordering::Release);
    FAILED.store(false, Ordering::Relaxed);
    locks::unlock_in_child(&CREATING);
    locks::unlock_in_child(&WARNINGS);
}

/// Opens the log: in memory, or in a file.
fn create_log(wanted: &Path, run: Option<&str>, header: &[u8]) -> io::Result<Log> {
    let in_memory = wanted.as_os_str() == trace_path::IN_MEMORY;
    let most = trace_max(in_memory);
    let log = if in_memory {
        Log::create(wanted, Naming::Exact, most, header)?
    } else {
        create_file(wanted, run, most, header)?
    };
    log.file().bound_alone(most, 0, 0);
    Ok(log)
}

/// Opens the log at `wanted` or, if that fails, in the temporary folder, with a message.
///
/// Refuses a name that cannot be right (a device, a file of the user).
fn create_file(wanted: &Path, run: Option<&str>, most: u64, header: &[u8]) -> io::Result<Log> {
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
        print_message(&format!("{why}: the trace goes to {}", log.file().path.display()));
        return Ok(log);
    }
    Err(io::Error::new(error.kind(), why))
}
