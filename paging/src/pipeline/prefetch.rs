//! Loads units ahead.

use super::core::{PipelineCore, PipelineState};
use super::cursor::Cursor;
use super::unit_set::PrefetchWindow;
use crate::error::Result;

impl Cursor {
    /// Loads ahead in the order of the schedule.
    ///
    /// Stops at a unit that would overwrite one needed sooner.
    pub(super) fn prefetch(&mut self, core: &PipelineCore, state: &mut PipelineState) -> Result<()> {
        let PipelineState { configuration, ring, counters, bounded, prefetcher, .. } = state;
        let uses = configuration.uses();
        if *prefetcher != self.id {
            *prefetcher = self.id;
            ring.epoch += 1;
        }
        if self.epoch != ring.epoch {
            (self.epoch, self.walked) = (ring.epoch, 0);
        }
        let from = configuration.uses_after(self.position);
        let end = if *bounded { uses.len() - from } else { uses.len() };
        let mut ahead = configuration
            .lookahead
            .map(|most| PrefetchWindow::new(&mut self.marker, &self.held, most, configuration.units()));
        let mut walked = if ahead.is_some() { 0 } else { self.walked };
        while walked < end {
            let unit = uses[(from + walked) % uses.len()];
            if let Some(ahead) = &mut ahead
                && !ahead.admits(unit)
            {
                break;
            }
            if !ring.is_loaded(unit) {
                if !ring.may_prefetch(configuration, unit, from, walked) {
                    break;
                }
                ring.load(&*core.backend, configuration, unit)?;
                counters.copies += 1;
                counters.copied_bytes += configuration.bytes(unit);
            }
            walked += 1;
        }
        self.walked = walked;
        Ok(())
    }
}
