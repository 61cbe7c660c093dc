//! The background thread that asks the shown processes for the location of their memory, and moves it.
//!
//! The screen never waits for a process: it sends orders and receives updates.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};

use crate::offload::checkpoint::{self, Target};
use crate::offload::control::{Process, Status, Unreachable};
use crate::offload::operation;
use memlab_base::output;
use memlab_protocol::status::{MoveStatus, OperationKind};

/// Interval between queries of a process.
const QUERY_INTERVAL: Duration = Duration::from_millis(1000);
/// Interval while its memory moves.
const BUSY_QUERY_INTERVAL: Duration = Duration::from_millis(100);
/// Interval between queries of a process that did not answer.
const SILENT_QUERY_INTERVAL: Duration = Duration::from_secs(3);
/// Longest time for a program to reach a point where it can stop.
const HALT_TIMEOUT: Duration = Duration::from_secs(30);

/// A process to query.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WatchedProcess {
    /// Process id.
    pub pid: u32,
    /// Identity of its trace: the pid may be reused, or belong to another machine.
    pub trace_id: String,
}

/// An order to move memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoveOrder {
    /// The process.
    pub of: WatchedProcess,
    /// Name of the process for people.
    pub who: String,
    /// Offload or restore.
    pub kind: OperationKind,
    /// True to use the CUDA driver's checkpoint.
    pub by_driver: bool,
}

/// Known location of a process's memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MemoryLocation {
    /// Its last reported state.
    pub moving: Option<MoveStatus>,
    /// Reason why no state is known.
    pub problem: Option<String>,
    /// Operation of the CUDA driver in progress.
    pub by_driver: Option<OperationKind>,
}

impl MemoryLocation {
    /// Returns true if memory is moving.
    pub fn is_busy(&self) -> bool {
        self.by_driver.is_some() || self.moving.as_ref().is_some_and(|moving| moving.state.is_busy())
    }
}

/// An update for the dashboard.
#[derive(Clone, Debug, Default)]
pub struct MoverUpdate {
    /// Location of each process's memory, by pid.
    pub known: HashMap<u32, MemoryLocation>,
    /// Outcomes of orders since the last update: a message each, for success or failure.
    pub outcomes: Vec<Result<String, String>>,
}

/// A command to the thread.
enum Command {
    /// Query these processes from now on.
    Watch(Vec<WatchedProcess>),
    /// Move the memory of a process.
    Move(MoveOrder),
}

/// The thread; it ends when this is dropped.
pub struct Mover {
    /// Dropped to stop the thread.
    commands: Option<Sender<Command>>,
    watched: Vec<WatchedProcess>,
    updates: Receiver<MoverUpdate>,
    driver_works: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Mover {
    /// Starts the thread.
    ///
    /// It queries no process before [`Mover::watch`].
    pub fn start() -> Self {
        let (commands, new_commands) = unbounded();
        let (published, updates) = unbounded();
        let driver_works = Arc::new(AtomicBool::new(false));
        let worker = Worker {
            commands: new_commands,
            updates: published,
            driver_works: driver_works.clone(),
            watched: Vec::new(),
            followed: HashMap::new(),
            by_driver: Vec::new(),
            outcomes: Vec::new(),
            changed: false,
        };
        let thread = std::thread::Builder::new().name("memlab-mover".into()).spawn(move || worker.run());
        Self { commands: Some(commands), watched: Vec::new(), updates, driver_works, thread: thread.ok() }
    }

    /// Sets the processes to query.
    pub fn watch(&mut self, watched: Vec<WatchedProcess>) {
        if self.watched != watched {
            self.watched.clone_from(&watched);
            self.send(Command::Watch(watched));
        }
    }

    /// Moves the memory of a process.
    pub fn order(&self, order: MoveOrder) {
        self.send(Command::Move(order));
    }

    /// Receives updates.
    pub fn updates(&self) -> &Receiver<MoverUpdate> {
        &self.updates
    }

    fn send(&self, command: Command) {
        if let Some(commands) = &self.commands {
            // The thread is gone only after a panic, which its hook reports. Nothing moves then.
            let _ = commands.send(command);
        }
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        drop(self.commands.take());
        if self.driver_works.load(Ordering::Relaxed) {
            // An interrupted driver would leave the program locked.
            output::note("waiting for the CUDA driver…");
        }
        if let Some(thread) = self.thread.take() {
            // The panic hook has already reported a panic of the thread.
            let _ = thread.join();
        }
    }
}

/// A followed process.
#[derive(Default)]
struct FollowedProcess {
    process: Option<Process>,
    asked: Option<Instant>,
    is_silent: bool,
    about: MemoryLocation,
    /// The operation ordered here.
    ours: Option<u64>,
    who: String,
}

/// An operation that the CUDA driver performs for memlab.
struct DriverOperation {
    of: WatchedProcess,
    thread: JoinHandle<Result<String, String>>,
}

struct Worker {
    commands: Receiver<Command>,
    updates: Sender<MoverUpdate>,
    driver_works: Arc<AtomicBool>,
    watched: Vec<WatchedProcess>,
    followed: HashMap<WatchedProcess, FollowedProcess>,
    by_driver: Vec<DriverOperation>,
    outcomes: Vec<Result<String, String>>,
    changed: bool,
}

impl Worker {
    fn run(mut self) {
        let mut pause = Duration::ZERO;
        loop {
            match self.commands.recv_timeout(pause) {
                Ok(command) => self.take(command),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            while let Ok(command) = self.commands.try_recv() {
                self.take(command);
            }
            // An operation started here is followed to its end, even if its process is no longer shown.
            let kept: HashSet<&WatchedProcess> = self.watched.iter().collect();
            self.followed.retain(|of, followed| kept.contains(of) || followed.ours.is_some());
            for of in &self.watched {
                self.followed.entry(of.clone()).or_default();
            }
            self.poll_driver();
            self.query_processes();
            if std::mem::take(&mut self.changed) || !self.outcomes.is_empty() {
                self.publish();
            }
            let busy = !self.by_driver.is_empty() || self.followed.values().any(|followed| followed.about.is_busy());
            pause = if busy { BUSY_QUERY_INTERVAL } else { QUERY_INTERVAL };
        }
        for by_driver in self.by_driver {
            let _ = by_driver.thread.join();
        }
    }

    fn take(&mut self, command: Command) {
        match command {
            Command::Watch(watched) => self.watched = watched,
            Command::Move(order) => self.execute(order),
        }
    }

    fn publish(&mut self) {
        let known = self.followed.iter().map(|(of, followed)| (of.pid, followed.about.clone())).collect();
        // The dashboard may be gone.
        let _ = self.updates.send(MoverUpdate { known, outcomes: std::mem::take(&mut self.outcomes) });
    }

    fn execute(&mut self, order: MoveOrder) {
        if order.by_driver {
            return self.have_driver(order);
        }
        let result = find(&order.of).and_then(|(process, _)| match order.kind {
            OperationKind::Restore => process.restore(HALT_TIMEOUT, false).map(|id| (process, id)),
            _ => process.offload(HALT_TIMEOUT, None).map(|id| (process, id)),
        });
        match result {
            Ok((process, id)) => {
                let followed = self.followed.entry(order.of).or_default();
                (followed.process, followed.ours, followed.asked) = (Some(process), Some(id), None);
                followed.who = order.who;
            }
            Err(error) => self.outcomes.push(Err(error.explain(order.of.pid, "wait until it continues"))),
        }
    }

    /// Runs the driver's calls in a thread, because they block until all is done.
    fn have_driver(&mut self, order: MoveOrder) {
        let MoveOrder { of, who, kind, .. } = order;
        let target = Target { pid: of.pid, who, process: find(&of).ok().map(|(process, _)| process) };
        let work = move || match kind {
            OperationKind::Restore => checkpoint::restore(&target)
                .map(|took| format!("restored {} in {}", target.who, operation::seconds(took.as_secs_f64())))
                .map_err(|failure| failure.message),
            _ => checkpoint::offload(&target, HALT_TIMEOUT)
                .map(|took| format!("checkpointed {} in {}", target.who, operation::seconds(took.as_secs_f64())))
                .map_err(|failure| failure.message),
        };
        match std::thread::Builder::new().name("memlab-driver".into()).spawn(work) {
            Ok(thread) => {
                self.followed.entry(of.clone()).or_default().about.by_driver = Some(kind);
                self.by_driver.push(DriverOperation { of, thread });
                self.driver_works.store(true, Ordering::Relaxed);
                self.changed = true;
            }
            Err(error) => self.outcomes.push(Err(format!("cannot start a thread: {error}"))),
        }
    }

    fn poll_driver(&mut self) {
        let (over, running) = std::mem::take(&mut self.by_driver).into_iter().partition(|one| one.thread.is_finished());
        self.by_driver = running;
        self.driver_works.store(!self.by_driver.is_empty(), Ordering::Relaxed);
        for DriverOperation { of, thread } in over {
            let followed = self.followed.entry(of).or_default();
            (followed.about.by_driver, followed.asked) = (None, None);
            self.outcomes
                .push(thread.join().unwrap_or_else(|_| Err("a bug in memlab: the thread panicked".to_owned())));
            self.changed = true;
        }
    }

    /// Queries all due processes at once, so that silent ones do not add up their timeouts.
    fn query_processes(&mut self) {
        let due: Vec<_> = self.followed.iter_mut().filter(|(_, followed)| followed.is_due()).collect();
        let (changed, outcomes) = std::thread::scope(|scope| {
            let asked: Vec<_> = due.into_iter().map(|(of, followed)| scope.spawn(|| followed.query(of))).collect();
            let answers = asked.into_iter().filter_map(|thread| thread.join().ok());
            answers.fold((false, Vec::new()), |(changed, mut outcomes), (changes, outcome)| {
                outcomes.extend(outcome);
                (changed || changes, outcomes)
            })
        });
        self.changed |= changed;
        self.outcomes.extend(outcomes);
    }
}

impl FollowedProcess {
    fn is_due(&self) -> bool {
        let pause = match (self.is_silent, self.about.is_busy() || self.ours.is_some()) {
            (true, _) => SILENT_QUERY_INTERVAL,
            (_, true) => BUSY_QUERY_INTERVAL,
            (_, false) => QUERY_INTERVAL,
        };
        // Tolerate a slightly early wake-up.
        self.asked.is_none_or(|asked| asked.elapsed() + Duration::from_millis(5) >= pause)
    }

    /// Queries the process.
    ///
    /// Returns true if anything changed, and the outcome of a finished order.
    fn query(&mut self, of: &WatchedProcess) -> (bool, Option<Result<String, String>>) {
        let answer = match &self.process {
            Some(process) => process.status(),
            None => find(of).map(|(process, status)| {
                self.process = Some(process);
                status
            }),
        };
        self.asked = Some(Instant::now());
        self.is_silent = matches!(answer, Err(Unreachable::Silent));
        let mut outcome = None;
        let about = match answer {
            Ok(status) if !is_the_one(&status, of) => {
                self.process = None;
                MemoryLocation { problem: Some(Unreachable::NoSocket.explain(of.pid, "")), ..MemoryLocation::default() }
            }
            Ok(status) => {
                outcome = self.outcome(&status);
                let problem = status.moving.is_none().then(|| {
                    format!(
                        "{} runs under an older memlab, which cannot move memory: restart it with this one",
                        status.who()
                    )
                });
                MemoryLocation { moving: status.moving, problem, by_driver: None }
            }
            // The last answer still holds: nothing moves in a stopped process.
            Err(Unreachable::Silent) if self.about.moving.is_some() => self.about.clone(),
            Err(error) => {
                self.process = None;
                if self.ours.take().is_some() && error.is_absent() {
                    outcome = Some(Err(format!("{} ended before the operation did", self.who)));
                }
                let problem = Some(error.explain(of.pid, "wait until it continues"));
                MemoryLocation { problem, ..MemoryLocation::default() }
            }
        };
        let about = MemoryLocation { by_driver: self.about.by_driver, ..about };
        let changed = about != self.about;
        self.about = about;
        (changed, outcome)
    }

    fn outcome(&mut self, status: &Status) -> Option<Result<String, String>> {
        let ours = self.ours?;
        let moving = status.moving.as_ref()?;
        match &moving.operation {
            Some(operation) if operation.id == ours && !operation.phase.is_over() => None,
            Some(operation) if operation.id == ours => {
                self.ours = None;
                let note = operation.note.as_ref().map(|note| format!("; {note}")).unwrap_or_default();
                Some(match operation::failure(operation, &self.who) {
                    Some(error) => Err(error),
                    None => Ok(operation::outcome_in_short(operation) + &note),
                })
            }
            // Another operation has begun since. The screen shows that one.
            _ => {
                self.ours = None;
                None
            }
        }
    }
}

fn is_the_one(status: &Status, of: &WatchedProcess) -> bool {
    status.id.is_empty() || of.trace_id.is_empty() || status.id == of.trace_id
}

fn find(of: &WatchedProcess) -> Result<(Process, Status), Unreachable> {
    match Process::find(of.pid)? {
        (_, status) if !is_the_one(&status, of) => Err(Unreachable::NoSocket),
        found => Ok(found),
    }
}
