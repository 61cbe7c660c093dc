//! A background thread that follows traces for those who visit them: nothing is drawn unless somebody asks.

use std::thread::JoinHandle;
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender, bounded, select, unbounded};

use super::follow::Followed;
use super::worker::{FIND_INTERVAL, Finder, IDLE, is_disconnected};

/// Something to be done with the traces between two looks at their files. Traces that are taken out are no longer followed,
/// unless the finder lists them again.
pub type ModelQuery = Box<dyn FnOnce(&mut Vec<Followed>) + Send>;

/// The running thread; it ends when this is dropped.
pub struct Visits {
    visits: Sender<ModelQuery>,
    /// Dropped to stop the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Visits {
    /// Begins to follow the traces that appear, all of them whole.
    ///
    /// # Errors
    ///
    /// If the system has no thread.
    pub fn start(finder: Finder) -> std::io::Result<Self> {
        let (visits, visitors) = unbounded();
        let (stop, stopped) = bounded(0);
        let thread = std::thread::Builder::new()
            .name("memlab-visits".into())
            .spawn(move || Host { followed: Vec::new(), finder, last_find: None }.run(&visitors, &stopped))?;
        Ok(Self { visits, stop: Some(stop), thread: Some(thread) })
    }

    /// Has the thread call `visit` with the traces as far as they have been written by now, soon. Nothing happens if the thread
    /// has ended by a panic, which its hook has reported.
    pub fn visit(&self, visit: ModelQuery) {
        let _ = self.visits.send(visit);
    }
}

impl Drop for Visits {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported by its hook.
            let _ = thread.join();
        }
    }
}

struct Host {
    followed: Vec<Followed>,
    finder: Finder,
    last_find: Option<Instant>,
}

impl Host {
    fn run(mut self, visitors: &Receiver<ModelQuery>, stop: &Receiver<()>) {
        let mut visit: Option<ModelQuery> = None;
        while !is_disconnected(stop) {
            self.find();
            let more = self.poll(stop);
            // What came while nothing was to be read sees what has been read since.
            for visit in visit.take().into_iter().chain(visitors.try_iter()) {
                visit(&mut self.followed);
            }
            if !more && visitors.is_empty() {
                select! {
                    recv(visitors) -> next => visit = next.ok(),
                    recv(stop) -> _ => {}
                    default(IDLE) => {}
                }
            }
        }
    }

    /// Reads what is new; whether there is more.
    fn poll(&mut self, stop: &Receiver<()>) -> bool {
        let count = self.followed.len();
        let mut more = false;
        for followed in &mut self.followed {
            followed.split_checkpoint_budget(count);
            more |= followed.poll(&|| is_disconnected(stop)).more;
        }
        more
    }

    /// Opens traces that are new. A file that is still empty is tried again.
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
