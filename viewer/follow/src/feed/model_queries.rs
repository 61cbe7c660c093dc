//! A background thread that follows traces and answers queries on their models.
//!
//! It draws nothing without a query.

use std::thread::JoinHandle;
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender, bounded, select, unbounded};

use super::follow::Followed;
use super::worker::{FIND_INTERVAL, Finder, IDLE_INTERVAL, is_disconnected};

/// Work on the traces between two reads of their files.
///
/// Traces that it removes are no longer followed, unless the finder lists them again.
pub type ModelQuery = Box<dyn FnOnce(&mut Vec<Followed>) + Send>;

/// The running thread; it ends when this is dropped.
pub struct ModelQueries {
    queries: Sender<ModelQuery>,
    /// Dropped to stop the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ModelQueries {
    /// Starts to follow all traces that appear, with their whole models.
    ///
    /// # Errors
    ///
    /// If the system has no thread.
    pub fn start(finder: Finder) -> std::io::Result<Self> {
        let (queries, new_queries) = unbounded();
        let (stop, stopped) = bounded(0);
        let thread = std::thread::Builder::new()
            .name("memlab-visits".into())
            .spawn(move || QueryThread { followed: Vec::new(), finder, last_find: None }.run(&new_queries, &stopped))?;
        Ok(Self { queries, stop: Some(stop), thread: Some(thread) })
    }

    /// Lets the thread call `query` soon, with the traces read up to their current end.
    ///
    /// Does nothing if the thread has ended by a panic, which its hook has reported.
    pub fn query(&self, query: ModelQuery) {
        let _ = self.queries.send(query);
    }
}

impl Drop for ModelQueries {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The panic hook has already reported a panic of the thread.
            let _ = thread.join();
        }
    }
}

struct QueryThread {
    followed: Vec<Followed>,
    finder: Finder,
    last_find: Option<Instant>,
}

impl QueryThread {
    fn run(mut self, new_queries: &Receiver<ModelQuery>, stop: &Receiver<()>) {
        let mut query: Option<ModelQuery> = None;
        while !is_disconnected(stop) {
            self.find();
            let more = self.poll(stop);
            // Queries that arrived while nothing was left to read now see the traces read since.
            for query in query.take().into_iter().chain(new_queries.try_iter()) {
                query(&mut self.followed);
            }
            if !more && new_queries.is_empty() {
                select! {
                    recv(new_queries) -> next => query = next.ok(),
                    recv(stop) -> _ => {}
                    default(IDLE_INTERVAL) => {}
                }
            }
        }
    }

    /// Reads new events.
    ///
    /// Returns true if more can be read.
    fn poll(&mut self, stop: &Receiver<()>) -> bool {
        let count = self.followed.len();
        let mut more = false;
        for followed in &mut self.followed {
            followed.split_checkpoint_budget(count);
            more |= followed.poll(&|| is_disconnected(stop)).more;
        }
        more
    }

    /// Opens new traces.
    ///
    /// A file that is still empty is retried.
    fn find(&mut self) {
        if self.last_find.is_some_and(|last| last.elapsed() < FIND_INTERVAL) {
            return;
        }
        self.last_find = Some(Instant::now());
        for path in (self.finder)() {
            if self.followed.iter().all(|followed| followed.path() != path)
                && let Ok(followed) = Followed::open(&path)
            {
                self.followed.push(followed);
            }
        }
    }
}
