//! The thread that follows the run's traces for notices.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use memlab_trace::{Follower, Model};

use super::launch::lock;
use super::traces::{FoundTrace, TraceFinder};
use memlab_base::output;
use memlab_follow::notices::{Deliveries, NoticedProcess, Options, ProcessNotices};

/// Interval between polls of the traces.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Follows the traces until the program ends.
pub struct NoticeThread {
    /// Dropped to make the thread read the rest and end.
    stop: Sender<()>,
    thread: JoinHandle<Deliveries>,
}

impl NoticeThread {
    /// Starts the thread; `None`: no recipient is set, or no thread can be started.
    ///
    /// `is_quiet`: the terminal shows the dashboard.
    ///
    /// The caller must block all signals that this process waits for, so that the thread does not take them.
    pub fn start(options: &Options, finder: &Arc<Mutex<TraceFinder>>, is_quiet: bool) -> Option<Self> {
        if !options.has_recipient() {
            return None;
        }
        let (options, finder) = (options.clone(), finder.clone());
        let (stop, stopped) = bounded::<()>(0);
        let follow = move || {
            let mut deliveries = Deliveries::new(&options, is_quiet);
            let mut followed: Vec<WatchedTrace> = Vec::new();
            loop {
                let is_over = stopped.recv_timeout(POLL_INTERVAL) == Err(RecvTimeoutError::Disconnected);
                if is_over {
                    lock(&finder).scan();
                }
                for found in lock(&finder).found() {
                    if !followed.iter().any(|followed| followed.path == found.path) {
                        followed.extend(WatchedTrace::open(found, &options));
                    }
                }
                for followed in &mut followed {
                    followed.poll(&mut deliveries, is_over);
                }
                deliveries.print_failures();
                if is_over {
                    return deliveries;
                }
            }
        };
        let thread = std::thread::Builder::new().name("memlab-notices".into()).spawn(follow);
        match thread {
            Ok(thread) => Some(Self { stop, thread }),
            Err(error) => {
                output::note(format_args!("notices are off: {error}"));
                None
            }
        }
    }

    /// Called when the program has ended: reads its last records, and begins to deliver their notices.
    pub fn read_to_the_end(self) -> Option<Deliveries> {
        drop(self.stop);
        // The panic hook has already reported a panic of the thread.
        self.thread.join().ok()
    }
}

/// A followed trace.
struct WatchedTrace {
    path: PathBuf,
    /// `None`: no longer readable.
    follower: Option<Follower>,
    model: Model,
    notices: ProcessNotices,
}

impl WatchedTrace {
    /// Opens a trace; `None`: to be retried at the next poll.
    fn open(found: &FoundTrace, options: &Options) -> Option<Self> {
        let follower = Follower::open(&found.path).ok()?;
        let trace = std::path::absolute(&found.path).unwrap_or_else(|_| found.path.clone());
        let process = NoticedProcess { header: found.header.clone(), trace };
        let notices = ProcessNotices::new(options, process);
        Some(Self { path: found.path.clone(), follower: Some(follower), model: Model::new(), notices })
    }

    fn poll(&mut self, deliveries: &mut Deliveries, is_over: bool) {
        let Some(follower) = &mut self.follower else { return };
        if is_over {
            follower.skip_holes();
        }
        let mut has_changed = is_over;
        loop {
            match follower.poll(&mut self.model) {
                Ok(polled) => {
                    has_changed |= polled.events > 0 || polled.restarted;
                    if !polled.more {
                        break;
                    }
                }
                Err(error) => {
                    deliveries.fails(format!("notices stopped: {error}"));
                    self.follower = None;
                    break;
                }
            }
        }
        if has_changed || self.notices.is_overdue() {
            for notice in self.notices.due(&mut self.model, is_over) {
                deliveries.deliver(&notice);
            }
        }
    }
}
