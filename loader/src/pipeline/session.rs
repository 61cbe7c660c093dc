//! One thread's way through the schedule, captured or not.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::capture::{Captured, broken};
use super::layout::Unit;
use super::ring::Holder;
use super::shared::Shared;
use super::way::Way;
use crate::backend::{Active, Capturing, Stream};
use crate::error::Result;

/// Calls what it is given, which waits for a while and says whether that was enough, until it was; in a setting in which waiting
/// is allowed: for Python, without the GIL. An error of its own ends the wait. No lock is held when it is called.
pub type Outside<'a> = &'a mut dyn FnMut(&mut (dyn FnMut() -> bool + Send)) -> Result<()>;

/// The [`Outside`] of a thread that may wait wherever it is.
pub fn anywhere(wait: &mut (dyn FnMut() -> bool + Send)) -> Result<()> {
    while !wait() {}
    Ok(())
}

/// What [`Session::enter`] changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change<'a> {
    pub released: &'a [Unit],
    pub acquired: &'a [Unit],
}

/// One thread's way through the schedule; each thread has its own.
pub struct Session {
    shared: Arc<Shared>,
    way: Way,
    /// The thread's last capture into a graph.
    capture: Option<Box<Captured>>,
}

impl Session {
    pub(super) fn new(shared: Arc<Shared>, id: Holder) -> Self {
        Self { shared, way: Way::new(id), capture: None }
    }

    /// The thread reached a point. On return work queued on `stream` may use the acquired units, and none may use the released.
    /// `None`: what it holds is what it held.
    pub fn enter(&mut self, key: i64, stream: Stream, outside: Outside) -> Result<Option<Change<'_>>> {
        let _active = Active::on(&*self.shared.backend)?;
        let way = match self.shared.backend.capturing(stream)? {
            Capturing::No => {
                let changed = self.way.enter(&self.shared, key, stream, outside)?;
                return Ok(changed.then_some(Change { released: &self.way.released, acquired: &self.way.acquired }));
            }
            Capturing::Broken => return Err(broken()),
            Capturing::Into(id) => {
                let Captured { shared, way, .. } = Self::capture(&self.shared, &mut self.capture, id, outside)?;
                way.enter(shared, key, stream, outside)?.then_some(way)
            }
        };
        Ok(way.map(|way| Change { released: &way.released, acquired: &way.acquired }))
    }

    /// This capture's part of the session.
    fn capture<'a>(
        shared: &Shared,
        known: &'a mut Option<Box<Captured>>,
        id: u64,
        outside: Outside,
    ) -> Result<&'a mut Captured> {
        let generation = shared.state.lock().generation;
        if known.as_ref().is_none_or(|known| known.id != id || known.generation != generation) {
            let mut begun = None;
            outside(&mut || {
                begun = Some(Captured::begin(shared, id));
                true
            })?;
            let begun = begun.unwrap_or_else(|| Err(broken()))?;
            *known = Some(Box::new(begun));
        }
        known.as_deref_mut().ok_or_else(broken)
    }

    /// The forward ended, well or not: lets go of everything, which is returned, and has the next forward's begin loaded.
    pub fn leave(&mut self, stream: Stream) -> Result<&[Unit]> {
        let _active = Active::on(&*self.shared.backend)?;
        let capturing = self.shared.backend.capturing(stream)?;
        let captured = self.capture.as_deref_mut().filter(|captured| captured.way.running);
        match (captured, capturing) {
            (Some(captured), Capturing::Into(id)) if captured.id == id => {
                captured.way.leave(&captured.shared, stream)?;
                Ok(&captured.way.released)
            }
            (captured, Capturing::No) => {
                let told = captured.map(Captured::abandon);
                self.way.leave(&self.shared, stream)?;
                self.way.released.extend(told.into_iter().flatten());
                Ok(&self.way.released)
            }
            // What was held before the capture stays held until the thread is back from it.
            (captured, _) => {
                self.way.released = captured.map(Captured::abandon).unwrap_or_default();
                Ok(&self.way.released)
            }
        }
    }

    /// Whether `enter` and `leave` may take long without calling `outside`: copies from pageable memory are done in part by the
    /// thread that asks for them.
    pub fn may_stall(&self) -> bool {
        self.shared.stalls.load(Ordering::Relaxed)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let Ok(_active) = Active::on(&*self.shared.backend) else { return };
        if self.way.running {
            let _ = self.way.leave(&self.shared, self.way.stream);
        }
        if let Some(mut timing) = self.way.timing.take() {
            timing.destroy(&*self.shared.backend);
        }
    }
}
