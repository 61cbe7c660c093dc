//! The thread that asks which traced processes there are.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crossbeam_channel::{Sender, bounded};

use memlab_follow::offload::control::{self, Status};

/// The time between two queries of the processes.
const QUERY_INTERVAL: Duration = Duration::from_secs(1);

/// The most running processes that are followed.
pub const MAX_PROCESSES: usize = 64;

/// What was found last.
#[derive(Clone, Debug, Default)]
pub struct Discovered {
    /// The processes that answered, by pid; the first [`MAX_PROCESSES`] are followed.
    pub processes: Vec<Status>,
    /// Those that did not: their number, and why.
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

    /// How many are too many to be followed.
    pub fn left_out(&self) -> usize {
        self.processes.len().saturating_sub(MAX_PROCESSES)
    }
}

/// The thread; it ends soon after this is dropped.
pub struct Discovery {
    found: Arc<Mutex<Discovered>>,
    _stop: Sender<()>,
}

impl Discovery {
    /// Asks once, and from then on in the background.
    ///
    /// # Errors
    ///
    /// If the system has no thread.
    pub fn start() -> std::io::Result<Self> {
        let found = Arc::new(Mutex::new(discover()));
        let (stop, stopped) = bounded::<()>(0);
        let shared = found.clone();
        let work = move || {
            // Nothing is ever sent: the channel is closed in the end.
            while stopped.recv_timeout(QUERY_INTERVAL).is_err_and(|error| error.is_timeout()) {
                let now = discover();
                *lock(&shared) = now;
            }
        };
        std::thread::Builder::new().name("memlab-discovery".into()).spawn(work)?;
        Ok(Self { found, _stop: stop })
    }

    /// What was found last, for other threads.
    pub fn found(&self) -> Arc<Mutex<Discovered>> {
        self.found.clone()
    }
}

/// What a mutex guards, also after a panic elsewhere: all that is shared here is replaced as a whole.
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
