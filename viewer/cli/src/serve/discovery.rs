//! The thread that discovers traced processes.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crossbeam_channel::{Sender, bounded};

use memlab_follow::offload::control::{self, Status};

/// Interval between queries of the processes.
const QUERY_INTERVAL: Duration = Duration::from_secs(1);

/// The most running processes that are followed.
pub const MAX_PROCESSES: usize = 64;

/// Result of the latest discovery.
#[derive(Clone, Debug, Default)]
pub struct Discovered {
    /// Processes that answered, by pid; the first [`MAX_PROCESSES`] are followed.
    pub processes: Vec<Status>,
    /// Processes that did not answer: pid and reason.
    pub problems: Vec<(u32, String)>,
}

impl Discovered {
    /// The traces to follow.
    pub fn traces(&self) -> Vec<PathBuf> {
        self.followed().map(|status| status.trace.clone()).collect()
    }

    /// The processes to follow.
    pub fn followed(&self) -> impl Iterator<Item = &Status> {
        self.processes.iter().take(MAX_PROCESSES)
    }

    /// Number of processes beyond the limit.
    pub fn left_out(&self) -> usize {
        self.processes.len().saturating_sub(MAX_PROCESSES)
    }
}

/// The discovery thread; it ends soon after this is dropped.
pub struct Discovery {
    found: Arc<Mutex<Discovered>>,
    _stop: Sender<()>,
}

impl Discovery {
    /// Discovers processes once, and then in the background.
    ///
    /// # Errors
    ///
    /// If the system has no thread.
    pub fn start() -> std::io::Result<Self> {
        let found = Arc::new(Mutex::new(discover()));
        let (stop, stopped) = bounded::<()>(0);
        let shared = found.clone();
        let work = move || {
            // The channel carries no messages; it only closes at the end.
            while stopped.recv_timeout(QUERY_INTERVAL).is_err_and(|error| error.is_timeout()) {
                let now = discover();
                *lock(&shared) = now;
            }
        };
        std::thread::Builder::new().name("memlab-discovery".into()).spawn(work)?;
        Ok(Self { found, _stop: stop })
    }

    /// The latest result, for other threads.
    pub fn found(&self) -> Arc<Mutex<Discovered>> {
        self.found.clone()
    }
}

/// Locks a mutex, also after a panic elsewhere.
///
/// All shared values here are replaced as a whole, so they stay valid.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn discover() -> Discovered {
    let mut found = Discovered::default();
    for (pid, answer) in control::discover() {
        match answer {
            Ok(status) => found.processes.push(status),
            Err(error) => found.problems.push((pid, error.explain(pid, "it is followed as soon as it continues"))),
        }
    }
    found
}
