//! Answers the routes: figures, page fragments, and moves.
//!
//! The thread that follows the traces answers all questions about them, one after the other. A waiting request does not
//! block others.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::{oneshot, watch};

use super::discovery::{Discovered, Discovery, lock};
use super::figures::{Figures, ProcessFigures};
use super::fragment::{self, Fragment, FragmentRequest};
use super::strip;
use memlab_follow::feed::{Followed, ModelQueries};
use memlab_follow::offload::mover::{MemoryLocation, MoveOrder, Mover, MoverUpdate, WatchedProcess};
use memlab_follow::offload::operation;
use memlab_protocol::status::{MoveState, OperationKind};
use memlab_report::page::elements::size;

/// Shortest interval between updates of pages; it grows if drawing is slow.
const UPDATE_INTERVAL: Duration = Duration::from_secs(1);
/// Longest interval between updates.
const MAX_UPDATE_INTERVAL: Duration = Duration::from_secs(10);
/// Interval between checks for an open page while none is open.
const PAGE_CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// Drawing uses at most this fraction of a core (1/N).
const DRAWING_SHARE_DIVISOR: u32 = 10;

/// Longest wait for the traces' thread.
///
/// After it, the previous figures are used.
const FIGURES_TIMEOUT: Duration = Duration::from_secs(2);

/// Time and number limit for ended processes on the page.
const ENDED_RETENTION: Duration = Duration::from_secs(3600);
const MAX_ENDED_PROCESSES: usize = 32;

/// The most fragments cached for other pages with the same request.
const MAX_FRAGMENTS: usize = 32;
/// The most move notices kept.
const MAX_NOTICES: usize = 8;

/// An update for pages.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct HubUpdate {
    /// The list of processes, as HTML.
    pub strip: String,
    /// Version of each process.
    pub versions: Vec<ProcessUpdate>,
    /// Outcomes of moves, newest last: number, success, and message.
    pub notices: Vec<(u64, bool, String)>,
}

/// Update of one process.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct ProcessUpdate {
    id: String,
    version: String,
    title: String,
    /// Possible move: `offload` or `restore`; `None`: none now.
    can: Option<&'static str>,
    /// Location of its memory, or the reason why it cannot be moved.
    moving: String,
    /// True if the process has ended.
    over: bool,
}

/// Time at which each trace was first seen ended.
type EndTimes = HashMap<PathBuf, Instant>;

/// The latest fragments, each with its process's version.
#[derive(Default)]
struct FragmentCache {
    fragments: VecDeque<(FragmentRequest, Arc<Fragment>)>,
    /// Duration of the latest drawing.
    took: Duration,
}

/// Everything that the server serves.
pub struct Hub {
    traces: ModelQueries,
    found: Arc<Mutex<Discovered>>,
    ended: Arc<Mutex<EndTimes>>,
    last: Mutex<Figures>,
    kept: Arc<Mutex<FragmentCache>>,
    mover: Mutex<Mover>,
    moved: Mutex<MoverUpdate>,
    notices: Mutex<Vec<(u64, bool, String)>>,
    updates: watch::Sender<Arc<HubUpdate>>,
    _discovery: Discovery,
}

impl Hub {
    /// Starts to follow this user's processes.
    ///
    /// # Errors
    ///
    /// If the system has no thread.
    pub fn start() -> std::io::Result<Self> {
        let discovery = Discovery::start()?;
        let found = discovery.found();
        let to_follow = found.clone();
        let traces = ModelQueries::start(Box::new(move || lock(&to_follow).traces()))?;
        Ok(Self {
            traces,
            found,
            ended: Arc::default(),
            last: Mutex::default(),
            kept: Arc::default(),
            mover: Mutex::new(Mover::start()),
            moved: Mutex::default(),
            notices: Mutex::default(),
            updates: watch::Sender::new(Arc::default()),
            _discovery: discovery,
        })
    }

    /// Number of processes.
    pub fn count(&self) -> usize {
        lock(&self.found).processes.len()
    }

    /// Returns current totals of all processes, or the previous ones if the traces' thread is busy.
    pub async fn figures(&self) -> Figures {
        let (found, ended) = (self.found.clone(), self.ended.clone());
        let asked = self.ask(move |followed| {
            let found = lock(&found).clone();
            retain(followed, &found, &mut lock(&ended));
            figures(followed, &found)
        });
        match tokio::time::timeout(FIGURES_TIMEOUT, asked).await {
            Ok(Some(figures)) => {
                lock(&self.last).clone_from(&figures);
                figures
            }
            _ => lock(&self.last).clone(),
        }
    }

    /// Returns the parts of the page about one process.
    ///
    /// # Errors
    ///
    /// If the process, device or moment does not exist; returns the message for the user.
    pub async fn fragment(&self, request: FragmentRequest) -> Result<Arc<Fragment>, String> {
        let kept = self.kept.clone();
        let drawn = self.ask(move |followed| {
            let version = followed
                .iter()
                .map(ProcessFigures::of)
                .find(|process| process.id == request.id)
                .map(|process| process.version());
            let known =
                lock(&kept).fragments.iter().find(|(of, _)| *of == request).map(|(_, fragment)| fragment.clone());
            if let Some(known) = known.filter(|known| Some(&known.version) == version.as_ref()) {
                return Ok(known);
            }
            let started = Instant::now();
            let fragment = Arc::new(fragment::draw(followed, &request)?);
            let mut kept = lock(&kept);
            kept.took = started.elapsed();
            kept.fragments.retain(|(of, _)| *of != request);
            kept.fragments.push_back((request, fragment.clone()));
            if kept.fragments.len() > MAX_FRAGMENTS {
                kept.fragments.pop_front();
            }
            Ok(fragment)
        });
        drawn
            .await
            .unwrap_or_else(|| Err("the thread that reads the traces has ended: restart memlab serve".to_owned()))
    }

    /// Starts a move of a process's memory; pages receive its progress.
    ///
    /// # Errors
    ///
    /// If the process does not exist; returns the message for the user.
    pub async fn order(&self, id: &str, kind: OperationKind) -> Result<(), String> {
        let figures = self.figures().await;
        let process = figures.processes.into_iter().find(|process| process.id == id && !process.state.is_over());
        let process = process.ok_or("this process has ended: nothing was moved")?;
        let of = WatchedProcess { pid: process.pid, trace_id: process.trace_id };
        let who = format!("{} (pid {})", process.command, process.pid);
        lock(&self.mover).order(MoveOrder { of, who, kind, by_driver: false });
        Ok(())
    }

    /// Subscribes to updates from now on.
    pub fn updates(&self) -> watch::Receiver<Arc<HubUpdate>> {
        self.updates.subscribe()
    }

    /// Sends updates while pages are open; otherwise only waits for a page.
    pub async fn tell(&self) {
        loop {
            if self.updates.receiver_count() == 0 {
                lock(&self.mover).watch(Vec::new());
                // Pages that open later must not receive old updates.
                self.updates.send_replace(Arc::default());
                while self.updates.receiver_count() == 0 {
                    tokio::time::sleep(PAGE_CHECK_INTERVAL).await;
                }
            }
            let figures = self.figures().await;
            let updates = Arc::new(self.make_update(&figures));
            self.updates.send_if_modified(|last| {
                let changed = **last != *updates;
                if changed {
                    *last = updates;
                }
                changed
            });
            let pace = (lock(&self.kept).took * DRAWING_SHARE_DIVISOR).clamp(UPDATE_INTERVAL, MAX_UPDATE_INTERVAL);
            tokio::time::sleep(pace).await;
        }
    }

    fn make_update(&self, figures: &Figures) -> HubUpdate {
        let running = figures.processes.iter().filter(|process| !process.state.is_over());
        let watched = running.map(|process| WatchedProcess { pid: process.pid, trace_id: process.trace_id.clone() });
        let mut mover = lock(&self.mover);
        mover.watch(watched.collect());
        let (mut moved, mut notices) = (lock(&self.moved), lock(&self.notices));
        for update in mover.updates().try_iter() {
            moved.known = update.known;
            for outcome in update.outcomes {
                let number = notices.last().map_or(0, |(number, ..)| number + 1);
                notices.push(match outcome {
                    Ok(words) => (number, true, words),
                    Err(words) => (number, false, words),
                });
            }
        }
        let too_many = notices.len().saturating_sub(MAX_NOTICES);
        notices.drain(..too_many);
        let location = |pid: u32| moved.known.get(&pid).cloned();
        HubUpdate {
            strip: strip::draw(figures, location).into_string(),
            versions: figures
                .processes
                .iter()
                .map(|process| ProcessUpdate::of(process, location(process.pid)))
                .collect(),
            notices: notices.clone(),
        }
    }

    /// Runs `answer` on the traces; `None`: their thread has ended.
    async fn ask<T: Send + 'static>(&self, answer: impl FnOnce(&mut Vec<Followed>) -> T + Send + 'static) -> Option<T> {
        let (sender, receiver) = oneshot::channel();
        self.traces.query(Box::new(move |followed| {
            // The caller may be gone by now.
            if !sender.is_closed() {
                let _ = sender.send(answer(followed));
            }
        }));
        receiver.await.ok()
    }
}

impl ProcessUpdate {
    fn of(process: &ProcessFigures, location: Option<MemoryLocation>) -> Self {
        let over = process.state.is_over();
        let moving = location.as_ref().and_then(|location| location.moving.as_ref()).filter(|_| !over);
        let can = moving.filter(|moving| moving.enabled).and_then(|moving| match moving.state {
            MoveState::Resident => Some("offload"),
            MoveState::Offloaded | MoveState::PartlyOffloaded => Some("restore"),
            _ => None,
        });
        let said = match (moving, location.as_ref().and_then(|location| location.problem.clone())) {
            _ if over => String::new(),
            (Some(moving), _) if !moving.enabled => moving.why_not.clone().unwrap_or_default(),
            (Some(moving), _) => match moving.operation.as_ref().filter(|operation| !operation.phase.is_over()) {
                Some(operation) => operation::progress(operation, moving.arena_bytes, 12, true),
                None => operation::where_it_is(moving).unwrap_or_default(),
            },
            (None, problem) => problem.unwrap_or_default(),
        };
        let allocated =
            process.devices.iter().fold(0_u64, |sum, device| sum.saturating_add(device.totals.allocated_bytes));
        Self {
            id: process.id.clone(),
            version: process.version(),
            title: format!("{} · {}", size(allocated), process.command),
            can,
            moving: said,
            over,
        }
    }
}

/// Removes runs that ended long ago or before many others, and traces that their process no longer writes.
fn retain(followed: &mut Vec<Followed>, found: &Discovered, ended: &mut EndTimes) {
    let now = Instant::now();
    let has_left = |followed: &Followed| {
        let pid = followed.model().header().map_or(0, |header| header.pid);
        found.followed().any(|status| status.pid == pid && status.trace != followed.path())
    };
    followed.retain(|followed| !has_left(followed));
    for followed in followed.iter().filter(|followed| followed.is_over()) {
        ended.entry(followed.path().to_owned()).or_insert(now);
    }
    let mut newest: Vec<Instant> = ended.values().copied().collect();
    newest.sort_unstable_by(|a, b| b.cmp(a));
    let oldest = newest.get(MAX_ENDED_PROCESSES).copied();
    let is_old =
        |since: &Instant| now.duration_since(*since) > ENDED_RETENTION || oldest.is_some_and(|oldest| *since <= oldest);
    followed.retain(|followed| !(followed.is_over() && ended.get(followed.path()).is_some_and(is_old)));
    ended.retain(|path, _| followed.iter().any(|followed| followed.path() == path));
}

fn figures(followed: &[Followed], found: &Discovered) -> Figures {
    let mut processes: Vec<ProcessFigures> = followed.iter().map(ProcessFigures::of).collect();
    // Running processes first, the ranks of a job side by side.
    processes.sort_by_key(|process| (process.state.is_over(), process.command.clone(), process.rank, process.pid));
    Figures { processes, left_out: found.left_out(), problems: found.problems.clone() }
}
