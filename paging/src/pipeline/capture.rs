//! A forward captured into a CUDA graph.
//!
//! Captured work executes at each replay, when the contents of the ring are unknown. A captured forward therefore has its
//! own ring, which is empty at its start, and its own copy stream. The copy stream is forked from the captured stream at the
//! start of the forward and joined to it at the end. From then on, uncaptured forwards fork and join too, because a replay
//! on the caller's stream may have run in between.

use std::sync::Arc;

use super::configuration::Unit;
use super::core::PipelineCore;
use super::cursor::Cursor;
use crate::error::{Error, Result};

/// One capture by one thread.
pub struct Captured {
    /// The driver's number of the capture.
    pub id: u64,
    /// Generation of the configuration that it was made for.
    pub generation: u64,
    pub core: PipelineCore,
    pub cursor: Cursor,
}

impl Captured {
    /// Prepares for capture `id`.
    ///
    /// May wait for copies in progress.
    pub fn begin(core: &PipelineCore, id: u64) -> Result<Self> {
        let backend = &core.backend;
        let _relaxed = backend.relax_captures();
        let (configuration, generation) = {
            let mut state = core.state.lock();
            state.bounded = true;
            // A replay would not wait for these copies.
            backend.synchronize(state.ring.stream)?;
            state.ring.all_done();
            (Arc::clone(&state.configuration), state.generation)
        };
        let captured = PipelineCore::new(Arc::clone(&core.arena), Arc::clone(backend), false)?;
        {
            let mut state = captured.state.lock();
            state.bounded = true;
            state.generation = 1;
            state.ring.clear(configuration.units());
            for unit in (0..configuration.units() as Unit).filter(|&unit| configuration.placement(unit).is_none()) {
                state.ring.assume_loaded(unit);
            }
            state.configuration = configuration;
        }
        Ok(Self { id, generation, core: captured, cursor: Cursor::new(1) })
    }

    /// Abandons the capture, because it failed or ended during a forward.
    ///
    /// Returns the units to report as released. Stream and events stay until this is dropped, because the capture may not
    /// have ended.
    pub fn abandon(&mut self) -> Vec<Unit> {
        self.id = 0;
        std::mem::replace(&mut self.cursor, Cursor::new(1)).reported
    }
}

impl Drop for Captured {
    fn drop(&mut self) {
        let _relaxed = self.core.backend.relax_captures();
        self.core.close();
    }
}

/// Error of a forward on a stream with a broken capture.
#[cold]
pub fn broken() -> Error {
    Error::Failed(
        "the CUDA graph capture under way on this stream has failed: end it, then run the forward again".into(),
    )
}
