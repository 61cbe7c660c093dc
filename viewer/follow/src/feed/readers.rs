//! Threads that read whole traces of ranks for their summaries, while the screen already fills.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use memlab_job::{Interned, RankSummary};
use memlab_trace::ReadError;

use super::figures::FollowedFigures;
use super::writer::WriterState;
use crate::snapshot::ProcessState;

/// The most threads; each holds one model.
const MAX_THREADS: usize = 4;

/// A trace to read.
pub struct ReadRequest {
    /// The file.
    pub path: PathBuf,
    /// True to follow the trace afterwards, if its writer lives.
    pub follow: bool,
}

/// A trace that a thread has read.
pub struct ReadTrace {
    /// The file.
    pub path: PathBuf,
    /// The summary, or the error.
    pub summary: Result<RankSummary, ReadError>,
    /// State of the writer.
    pub state: ProcessState,
    /// Figures that follow the trace from now on.
    pub followed: Option<FollowedFigures>,
    /// Duration of the read.
    pub took: Duration,
}

/// The reader threads; they end on drop.
pub struct Readers {
    orders: Option<Sender<ReadRequest>>,
    done: Receiver<ReadTrace>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Readers {
    /// Starts the threads.
    ///
    /// All traces share the names of lines and layers.
    pub fn start(names: &Arc<Interned>) -> Self {
        let (orders, to_read) = unbounded::<ReadRequest>();
        let (done_here, done) = unbounded();
        let stop = Arc::new(AtomicBool::new(false));
        let count = thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
        let start = |_| {
            let (to_read, done, stop, names) = (to_read.clone(), done_here.clone(), stop.clone(), names.clone());
            let work = move || {
                for order in to_read {
                    if stop.load(Ordering::Relaxed) || done.send(read(order, &names, &stop)).is_err() {
                        return;
                    }
                }
            };
            thread::Builder::new().name("memlab-reader".into()).spawn(work).ok()
        };
        let threads = (0..count).filter_map(start).collect();
        Self { orders: Some(orders), done, stop, threads }
    }

    /// Orders the read of a trace.
    pub fn order(&self, order: ReadRequest) {
        if let Some(orders) = &self.orders {
            // The threads are gone only after a panic, which the hook reports. Nothing is read then.
            let _ = orders.send(order);
        }
    }

    /// Traces read since the last call.
    pub fn done(&self) -> impl Iterator<Item = ReadTrace> + '_ {
        self.done.try_iter()
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        drop(self.orders.take());
        for thread in self.threads.drain(..) {
            // The panic hook has already reported a panic of the thread.
            let _ = thread.join();
        }
    }
}

fn read(order: ReadRequest, names: &Interned, stop: &AtomicBool) -> ReadTrace {
    use std::ops::ControlFlow::{Break, Continue};
    let began = Instant::now();
    let is_stopped = || stop.load(Ordering::Relaxed);
    let ReadRequest { path, follow } = order;
    let mut summary = RankSummary::read(&path, names, &mut |_| if is_stopped() { Break(()) } else { Continue(()) });
    let state = summary.as_ref().map_or(ProcessState::Unreadable, |summary| match summary.end {
        Some(end) => ProcessState::Ended { code: end.code, signal: end.signal },
        None => WriterState::default().check(Some(&summary.header), &path, true),
    });
    let followed = match &mut summary {
        // A compressed trace cannot grow.
        Ok(summary) if follow && !state.is_over() => {
            FollowedFigures::open(&path, &is_stopped).inspect(|followed| followed.update(summary)).ok()
        }
        _ => None,
    };
    ReadTrace { path, summary, state, followed, took: began.elapsed() }
}
