//! The session of a thread: its forwards, captured or not.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::capture::{Captured, broken};
use super::configuration::Unit;
use super::core::PipelineCore;
use super::cursor::Cursor;
use super::ring::Holder;
use super::unlocked::Unlocked;
use crate::backend::{ActiveDevice, CaptureStatus, Stream};
use crate::error::Result;

/// Units that [`Session::enter`] released and acquired.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change<'a> {
    /// Units that later work must not use.
    pub released: &'a [Unit],
    /// Units that later work may use.
    pub acquired: &'a [Unit],
}

/// Position of one thread in the schedule.
///
/// Each thread has its own session.
pub struct Session {
    core: Arc<PipelineCore>,
    cursor: Cursor,
    /// Last capture of the thread into a graph.
    capture: Option<Box<Captured>>,
}

impl Session {
    pub(super) fn new(core: Arc<PipelineCore>, id: Holder) -> Self {
        Self { core, cursor: Cursor::new(id), capture: None }
    }

    /// Moves the thread to a point.
    ///
    /// Later work on `stream` may use the acquired units, and must not use the released ones. Returns `None` if nothing
    /// changed.
    ///
    /// # Errors
    ///
    /// If the key is unknown, the pipeline was closed or reconfigured during the forward, a copy fails, or `unlocked`
    /// returns an error.
    pub fn enter(&mut self, key: i64, stream: Stream, unlocked: Unlocked) -> Result<Option<Change<'_>>> {
        let _active = ActiveDevice::on(&*self.core.backend)?;
        let cursor = match self.core.backend.capturing(stream)? {
            CaptureStatus::None => {
                let changed = self.cursor.enter(&self.core, key, stream, unlocked)?;
                return Ok(
                    changed.then_some(Change { released: &self.cursor.released, acquired: &self.cursor.acquired })
                );
            }
            CaptureStatus::Broken => return Err(broken()),
            CaptureStatus::Active(id) => {
                let Captured { core, cursor, .. } = Self::capture(&self.core, &mut self.capture, id, unlocked)?;
                cursor.enter(core, key, stream, unlocked)?.then_some(cursor)
            }
        };
        Ok(cursor.map(|cursor| Change { released: &cursor.released, acquired: &cursor.acquired }))
    }

    /// Returns the state of a capture.
    fn capture<'a>(
        core: &PipelineCore,
        known: &'a mut Option<Box<Captured>>,
        id: u64,
        unlocked: Unlocked,
    ) -> Result<&'a mut Captured> {
        let generation = core.state.lock().generation;
        if known.as_ref().is_none_or(|known| known.id != id || known.generation != generation) {
            let mut begun = None;
            unlocked(&mut || {
                begun = Some(Captured::begin(core, id));
                true
            })?;
            let begun = begun.unwrap_or_else(|| Err(broken()))?;
            *known = Some(Box::new(begun));
        }
        known.as_deref_mut().ok_or_else(broken)
    }

    /// Ends the forward, with or without an error.
    ///
    /// Releases and returns all units, and loads the first units of the next forward.
    ///
    /// # Errors
    ///
    /// If copies for the next forward cannot be queued.
    pub fn leave(&mut self, stream: Stream) -> Result<&[Unit]> {
        let _active = ActiveDevice::on(&*self.core.backend)?;
        let capturing = self.core.backend.capturing(stream)?;
        let captured = self.capture.as_deref_mut().filter(|captured| captured.cursor.running);
        match (captured, capturing) {
            (Some(captured), CaptureStatus::Active(id)) if captured.id == id => {
                captured.cursor.leave(&captured.core, stream)?;
                Ok(&captured.cursor.released)
            }
            (captured, CaptureStatus::None) => {
                let reported = captured.map(Captured::abandon);
                self.cursor.leave(&self.core, stream)?;
                self.cursor.released.extend(reported.into_iter().flatten());
                Ok(&self.cursor.released)
            }
            // Units held before the capture stay held until it ends.
            (captured, _) => {
                self.cursor.released = captured.map(Captured::abandon).unwrap_or_default();
                Ok(&self.cursor.released)
            }
        }
    }

    /// Returns true if `enter` and `leave` may take long without calling `unlocked`.
    ///
    /// Copies from pageable memory partly execute on the calling thread.
    pub fn may_stall(&self) -> bool {
        self.core.copies_block.load(Ordering::Relaxed)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let Ok(_active) = ActiveDevice::on(&*self.core.backend) else { return };
        if self.cursor.running {
            let _ = self.cursor.leave(&self.core, self.cursor.stream);
        }
        if let Some(mut timing) = self.cursor.timing.take() {
            timing.destroy(&*self.core.backend);
        }
    }
}
