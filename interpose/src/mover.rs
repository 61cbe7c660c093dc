//! Moving the program's device memory to host memory and back, from outside, while it runs or waits.
//!
//! What a command does: [`start`] spawns a thread for the operation; that closes the [`gate`], finds a [`quiesce`]nt point,
//! and moves the bytes of what [`backing`] has put behind the program's addresses ([`holdings`]) through the [`copy`]
//! pipeline to the pinned [`arena`] or back. The thread needs neither the GIL nor a lock of PyTorch's or of the program's.

pub mod backing;
pub mod captures;
pub mod driver;
pub mod gate;

mod arena;
mod copy;
mod holdings;
pub mod host_memory;
mod operation;
mod quiesce;

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use memlab_trace::encode::{self, LineBuffer};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::cuda::info;
use crate::late;
use crate::lifecycle;
use crate::limit;
use crate::recorder::Recorder;
use arena::Arena;
use holdings::{ARENA, HOLDINGS, Holdings, Totals};

/// What is asked for.
pub enum Request {
    Offload,
    Restore {
        free_host: bool,
    },
    /// (address, bytes) of whole pages, to go to host memory at the same addresses.
    Move {
        ranges: Vec<(u64, u64)>,
    },
}

impl Request {
    fn kind(&self) -> &'static str {
        match self {
            Self::Offload => "offload",
            Self::Restore { .. } => "restore",
            Self::Move { .. } => "move",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    Waiting,
    Synchronising,
    Preparing,
    Copying,
    Releasing,
    Done,
    Failed,
}

impl Phase {
    fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Synchronising => "synchronising",
            Self::Preparing => "preparing",
            Self::Copying => "copying",
            Self::Releasing => "releasing",
            Self::Done => "done",
            Self::Failed => "failed",
        }
    }
}

/// Why an operation did not do what it should.
pub struct Failure {
    what: String,
    /// It may work later, when there is room on the device.
    retryable: bool,
}

impl Failure {
    fn retryable(what: String) -> Self {
        Self { what, retryable: true }
    }
}

impl From<String> for Failure {
    fn from(what: String) -> Self {
        Self { what, retryable: false }
    }
}

impl From<&str> for Failure {
    fn from(what: &str) -> Self {
        what.to_owned().into()
    }
}

/// How an operation goes, for everybody to look at.
pub struct Progress {
    id: u64,
    kind: &'static str,
    started: Instant,
    /// Bytes copied.
    done: AtomicU64,
    stage: Mutex<Stage>,
}

struct Stage {
    phase: Phase,
    total: u64,
    copying_since: Option<Instant>,
    copied_in: Duration,
    ended_after: Option<Duration>,
    failure: Option<Failure>,
    note: Option<String>,
}

impl Progress {
    fn enter(&self, phase: Phase) {
        let mut stage = self.stage.lock();
        if let Some(since) = stage.copying_since.take() {
            stage.copied_in += since.elapsed();
        }
        if phase == Phase::Copying {
            stage.copying_since = Some(Instant::now());
        }
        if matches!(phase, Phase::Done | Phase::Failed) {
            stage.ended_after = Some(self.started.elapsed());
        }
        stage.phase = phase;
    }

    fn begin_copying(&self, bytes: u64) {
        self.stage.lock().total = bytes;
        self.enter(Phase::Copying);
    }

    /// What was copied to make room for the rest is nobody's concern at the end.
    fn settle_at(&self, bytes: u64) {
        self.stage.lock().total = bytes;
        self.done.store(bytes, Ordering::Relaxed);
    }

    pub fn id(&self) -> u64 {
        self.id
    }

    /// Waits for its end.
    pub fn wait(&self) -> Result<(), String> {
        while self.is_running() {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.stage.lock().failure.as_ref().map_or(Ok(()), |failure| Err(failure.what.clone()))
    }

    fn is_running(&self) -> bool {
        !matches!(self.stage.lock().phase, Phase::Done | Phase::Failed)
    }

    fn describe(&self) -> Value {
        let stage = self.stage.lock();
        let copying = stage.copied_in + stage.copying_since.map_or(Duration::ZERO, |since| since.elapsed());
        json!({
            "id": self.id,
            "kind": self.kind,
            "phase": stage.phase.name(),
            "done_bytes": self.done.load(Ordering::Relaxed),
            "total_bytes": stage.total,
            "seconds": stage.ended_after.unwrap_or_else(|| self.started.elapsed()).as_secs_f64(),
            "copy_seconds": copying.as_secs_f64(),
            "error": stage.failure.as_ref().map(|failure| &failure.what),
            "retryable": stage.failure.as_ref().is_some_and(|failure| failure.retryable),
            "note": stage.note,
        })
    }
}

/// The operation under way, or the last.
static OPERATION: Mutex<Option<&'static Progress>> = Mutex::new(None);
static OPERATIONS: AtomicU64 = AtomicU64::new(0);
/// The driver's own checkpoint is in force; whoever asked for it said so.
static CHECKPOINTED: AtomicBool = AtomicBool::new(false);

static ENABLED: AtomicBool = AtomicBool::new(false);

/// Whether the program was started for offloading.
#[inline]
pub fn is_enabled() -> bool {
    ENABLED.load(Ordering::Relaxed)
}

/// Some of the program's memory is in [`holdings`] although it was not started for that: spilled over a limit.
static SPILLED: AtomicBool = AtomicBool::new(false);

/// Whether addresses and handles that the program has may be memlab's.
#[inline]
pub fn holds_memory() -> bool {
    is_enabled() || SPILLED.load(Ordering::Relaxed)
}

/// From here on they may.
pub fn begin_to_hold() {
    SPILLED.store(true, Ordering::Release);
}

/// Starts an operation on a thread of its own.
pub fn start(request: Request, timeout: Duration) -> Result<&'static Progress, String> {
    if !is_enabled() {
        return Err(format!("{}: start it with `memlab run --offload`, or use --full", why_not()));
    }
    let mut current = OPERATION.lock();
    if let Some(running) = current.filter(|operation| operation.is_running()) {
        return Err(format!("another operation ({}) is under way: wait for its end", running.kind));
    }
    match request {
        Request::Restore { free_host } if !operation::could_restore(free_host) => {
            return Err(operation::NOTHING_TO_RESTORE.to_owned());
        }
        Request::Offload | Request::Move { .. } if gate::is_closed() => {
            return Err("the program is offloaded already: restore it first".to_owned());
        }
        Request::Offload if !operation::could_offload() => return Err(operation::NOTHING_TO_MOVE.to_owned()),
        _ => {}
    }
    // A few hundred bytes an operation, kept: whoever looks at it needs no lock.
    let progress: &'static Progress = Box::leak(Box::new(Progress {
        id: OPERATIONS.fetch_add(1, Ordering::Relaxed) + 1,
        kind: request.kind(),
        started: Instant::now(),
        done: AtomicU64::new(0),
        stage: Mutex::new(Stage {
            phase: Phase::Waiting,
            total: 0,
            copying_since: None,
            copied_in: Duration::ZERO,
            ended_after: None,
            failure: None,
            note: None,
        }),
    }));
    spawn("memlab-move", move || run(request, timeout, progress))
        .map_err(|error| format!("no thread could be started ({error}): nothing was moved"))?;
    *current = Some(progress);
    Ok(progress)
}

fn run(request: Request, timeout: Duration, progress: &'static Progress) {
    let _never_record = crate::thread::Guard::enter();
    driver::relax_captures();
    let outcome = crate::quietly(|| match &request {
        Request::Offload => operation::offload(progress, timeout),
        Request::Restore { free_host } => operation::restore(progress, timeout, *free_host),
        Request::Move { ranges } => operation::move_ranges(progress, timeout, ranges),
    });
    let outcome = outcome.unwrap_or_else(|| Err("memlab made a mistake: please report this".into()));
    let phase = if outcome.is_ok() { Phase::Done } else { Phase::Failed };
    {
        let mut stage = progress.stage.lock();
        match outcome {
            Ok(note) => stage.note = note,
            Err(failure) => stage.failure = Some(failure),
        }
    }
    limit::outside::changed();
    progress.enter(phase);
    if let Some(recorder) = Recorder::current() {
        record_moved(recorder);
        recorder.sampler.driver_memory_changed();
    }
}

/// Runs something on a thread of memlab's, which takes none of the program's signals.
pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    // SAFETY: plain signal mask calls on this thread; the mask is restored right after.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &all, &mut before);
        let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(work);
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        spawned.map(drop)
    }
}

/// Contexts that the program has made besides the devices' primary ones, and whose they are.
static CONTEXTS: Mutex<Vec<(u64, i32)>> = Mutex::new(Vec::new());

pub fn context_created(context: u64, device: i32) {
    CONTEXTS.lock().push((context, device));
}

pub fn context_destroyed(context: u64) {
    CONTEXTS.lock().retain(|&(known, _)| known != context);
}

/// The contexts whose work has to end before anything moves.
fn contexts() -> Vec<u64> {
    let primary = (0..driver::device_count()).map(info::primary_context).filter(|&context| context != 0);
    primary.chain(CONTEXTS.lock().iter().map(|&(context, _)| context)).collect()
}

/// A context in which copies to and from a device can be made; 0 where there is none.
fn context_of(device: i32) -> u64 {
    match info::primary_context(device) {
        0 => CONTEXTS.lock().iter().find(|&&(_, owner)| owner == device).map_or(0, |&(context, _)| context),
        primary => primary,
    }
}

fn why_not() -> &'static str {
    "this process was not started for offloading"
}

/// One word or two for a table, and all of it.
pub fn status() -> (&'static str, Value) {
    if CHECKPOINTED.load(Ordering::Relaxed) {
        return ("checkpointed", json!({"enabled": is_enabled(), "state": "checkpointed"}));
    }
    if !is_enabled() {
        return ("recording", json!({"enabled": false, "state": "resident", "why_not": why_not()}));
    }
    let operation = *OPERATION.lock();
    let running = operation.filter(|operation| operation.is_running()).map(|operation| operation.kind);
    // While bytes are on their way the tables are locked, and nobody is kept waiting for a status. Else it is only for
    // moments that they are.
    let patience = if running.is_some() { Duration::ZERO } else { Duration::from_millis(200) };
    let mut seen = LAST_SEEN.lock();
    if let Some(holdings) = HOLDINGS.try_lock_for(patience) {
        seen.totals = holdings.totals();
    }
    if let Some(arena) = ARENA.try_lock_for(patience) {
        seen.arena_bytes = arena.bytes();
    }
    let Seen { totals, arena_bytes } = *seen;
    let state = match running {
        Some("offload") => "offloading",
        Some("restore") => "restoring",
        Some(_) => "moving",
        None if gate::is_closed() => "offloaded",
        None if totals.host_bytes > 0 => "partly_offloaded",
        None => "resident",
    };
    let word = match state {
        "resident" => "recording",
        "partly_offloaded" => "partly offloaded",
        other => other,
    };
    let status = json!({
        "enabled": true,
        "state": state,
        "device_bytes": totals.device_bytes,
        "host_bytes": totals.host_bytes,
        "fixed_bytes": totals.fixed_bytes,
        "arena_bytes": arena_bytes,
        "page_bytes": backing::LEAST,
        "operation": operation.map(Progress::describe),
    });
    (word, status)
}

/// Writes down how much of each device's memory lies in host memory, where that has changed; says whether the card may be
/// asked: while bytes are on their way its figures mean nothing, and while the process is checkpointed it does not answer.
pub fn record_moved(recorder: &Recorder) -> bool {
    if CHECKPOINTED.load(Ordering::Relaxed) || OPERATION.lock().is_some_and(Progress::is_running) {
        return false;
    }
    let Some(mut now) = HOLDINGS.try_lock().map(|holdings| holdings.host_bytes_by_device()) else { return false };
    for (device, bytes) in limit::spill::pinned_bytes() {
        *now.entry(device).or_default() += bytes;
    }
    let Some(mut last) = LAST_RECORDED.try_lock() else { return false };
    last.keys().for_each(|&device| _ = now.entry(device).or_default()); // All freed: none is left there.
    for (&device, &bytes) in &now {
        if last.get(&device).copied().unwrap_or(0) != bytes {
            recorder.log.append(encode::moved(&mut LineBuffer::<128>::new(), recorder.now(), device, bytes));
        }
    }
    *last = now;
    true
}

/// Something was spilled: what is allocated next is to be seen with it. Where another thread is at it, the control thread
/// does so soon.
pub fn record_spilled() {
    if let Some(recorder) = Recorder::current() {
        record_moved(recorder);
    }
}

/// Bytes of a device's that lie in host memory; `None` while they are on their way.
pub fn host_bytes(device: i32) -> Option<u64> {
    Some(HOLDINGS.try_lock()?.host_bytes_by_device().get(&device).copied().unwrap_or(0))
}

/// Bytes of all devices' that lie in host memory, when it could last be told.
pub fn all_host_bytes() -> u64 {
    let mut seen = LAST_SEEN.lock();
    if let Some(holdings) = HOLDINGS.try_lock() {
        seen.totals = holdings.totals();
    }
    seen.totals.host_bytes
}

/// What the tables said when they could last be read.
struct Seen {
    totals: Totals,
    arena_bytes: u64,
}

/// What the trace says of each device: see [`record_moved`].
static LAST_RECORDED: Mutex<BTreeMap<i32, u64>> = Mutex::new(BTreeMap::new());

static LAST_SEEN: Mutex<Seen> =
    Mutex::new(Seen { totals: Totals { device_bytes: 0, host_bytes: 0, fixed_bytes: 0 }, arena_bytes: 0 });

pub fn is_checkpointed() -> bool {
    CHECKPOINTED.load(Ordering::Relaxed)
}

pub fn set_checkpointed(value: bool) {
    CHECKPOINTED.store(value, Ordering::Relaxed);
}

/// Called when the library is loaded.
pub fn loaded() {
    if !crate::config().offload {
        return;
    }
    if !late::preloaded() {
        // What runs already would not pass the gate.
        crate::say(
            "MEMLAB_OFFLOAD needs memlab to be there from the start (`memlab run --offload`): nothing can be offloaded",
        );
        return;
    }
    gate::build();
    ENABLED.store(true, Ordering::Release);
}

/// In a forked child: the card's memory is its parent's, and its tables may have been caught in the middle of a change.
pub fn forget_in_child() {
    lifecycle::reset_in_child(&HOLDINGS, Holdings::new());
    lifecycle::reset_in_child(&ARENA, Arena::new());
    lifecycle::reset_in_child(&OPERATION, None);
    lifecycle::reset_in_child(&CONTEXTS, Vec::new());
    lifecycle::free_in_child(&LAST_SEEN);
    lifecycle::reset_in_child(&LAST_RECORDED, BTreeMap::new());
    captures::forget_in_child();
    gate::forget_in_child();
}
