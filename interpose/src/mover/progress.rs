//! Progress and outcome of an operation.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use interpose_base::locks;
use memlab_protocol::status::{Operation, OperationKind, OperationPhase};
use parking_lot::{Mutex, MutexGuard};

/// Reason for which an operation failed.
pub struct Failure {
    pub what: String,
    /// True if a retry may succeed later, when the device has room.
    pub retryable: bool,
}

impl Failure {
    pub fn retryable(what: String) -> Self {
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

/// Progress of an operation.
pub struct Progress {
    id: u64,
    pub kind: OperationKind,
    started: Instant,
    /// Bytes copied.
    pub done: AtomicU64,
    stage: Mutex<Stage>,
}

struct Stage {
    phase: OperationPhase,
    total: u64,
    copying_since: Option<Instant>,
    copied_in: Duration,
    ended_after: Option<Duration>,
    failure: Option<Failure>,
    note: Option<String>,
}

impl Progress {
    /// Makes a new progress the current operation.
    ///
    /// It is never freed, so that it can be read without a lock; it takes a few hundred bytes.
    pub fn begin(kind: OperationKind) -> &'static Self {
        Box::leak(Box::new(Self {
            id: OPERATIONS.fetch_add(1, Ordering::Relaxed) + 1,
            kind,
            started: Instant::now(),
            done: AtomicU64::new(0),
            stage: Mutex::new(Stage {
                phase: OperationPhase::Waiting,
                total: 0,
                copying_since: None,
                copied_in: Duration::ZERO,
                ended_after: None,
                failure: None,
                note: None,
            }),
        }))
    }

    /// Sets the outcome, before the last phase is entered: `Ok` may contain a remark for the user.
    pub fn set_outcome(&self, outcome: Result<Option<String>, Failure>) {
        let mut stage = self.stage.lock();
        match outcome {
            Ok(note) => stage.note = note,
            Err(failure) => stage.failure = Some(failure),
        }
    }

    pub fn enter(&self, phase: OperationPhase) {
        let mut stage = self.stage.lock();
        if let Some(since) = stage.copying_since.take() {
            stage.copied_in += since.elapsed();
        }
        if phase == OperationPhase::Copying {
            stage.copying_since = Some(Instant::now());
        }
        if phase.is_over() {
            stage.ended_after = Some(self.started.elapsed());
        }
        stage.phase = phase;
    }

    pub fn begin_copying(&self, bytes: u64) {
        self.stage.lock().total = bytes;
        self.enter(OperationPhase::Copying);
    }

    /// Adds bytes to copy that were not known before.
    pub fn expect(&self, bytes: u64) {
        self.stage.lock().total += bytes;
    }

    /// Sets the total to the requested bytes: copies made to create room do not count at the end.
    pub fn settle_at(&self, bytes: u64) {
        self.stage.lock().total = bytes;
        self.done.store(bytes, Ordering::Relaxed);
    }

    pub fn id(&self) -> u64 {
        self.id
    }

    /// Waits until the operation ends.
    pub fn wait(&self) -> Result<(), String> {
        while self.is_running() {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.stage.lock().failure.as_ref().map_or(Ok(()), |failure| Err(failure.what.clone()))
    }

    pub fn is_running(&self) -> bool {
        !self.stage.lock().phase.is_over()
    }

    pub fn describe(&self) -> Operation {
        let stage = self.stage.lock();
        let copying = stage.copied_in + stage.copying_since.map_or(Duration::ZERO, |since| since.elapsed());
        Operation {
            id: self.id,
            kind: self.kind,
            phase: stage.phase,
            done_bytes: self.done.load(Ordering::Relaxed),
            total_bytes: stage.total,
            seconds: stage.ended_after.unwrap_or_else(|| self.started.elapsed()).as_secs_f64(),
            copy_seconds: copying.as_secs_f64(),
            error: stage.failure.as_ref().map(|failure| failure.what.clone()),
            note: stage.note.clone(),
            retryable: stage.failure.as_ref().is_some_and(|failure| failure.retryable),
        }
    }
}

/// The operation in progress, or the last one.
static CURRENT: Mutex<Option<&'static Progress>> = Mutex::new(None);
static OPERATIONS: AtomicU64 = AtomicU64::new(0);
/// True while the driver's checkpoint is active; set by `memlab offload --full`.
static CHECKPOINTED: AtomicBool = AtomicBool::new(false);

/// The operation in progress, or the last one.
///
/// It is replaced only under this lock.
pub fn current() -> MutexGuard<'static, Option<&'static Progress>> {
    CURRENT.lock()
}

pub fn is_checkpointed() -> bool {
    CHECKPOINTED.load(Ordering::Relaxed)
}

pub fn set_checkpointed(value: bool) {
    CHECKPOINTED.store(value, Ordering::Relaxed);
}

pub fn reset_in_child() {
    locks::reset_in_child(&CURRENT, None);
}
