//! Loading ahead.

use super::cursor::Cursor;
use super::shared::{Shared, State};
use super::unit_set::PrefetchWindow;
use crate::error::Result;

impl Cursor {
    /// Loads ahead in the order of the schedule, up to a unit that would overwrite one needed sooner.
    pub(super) fn prefetch(&mut self, shared: &Shared, state: &mut State) -> Result<()> {
        let State { layout, ring, counters, bounded, .. } = state;
        let uses = layout.uses();
        if ring.prefetcher != self.id {
            ring.prefetcher = self.id;
            ring.epoch += 1;
        }
        if self.epoch != ring.epoch {
            (self.epoch, self.walked) = (ring.epoch, 0);
        }
        let from = layout.uses_after(self.position);
        let end = if *bounded { uses.len() - from } else { uses.len() };
        let mut ahead =
            layout.lookahead.map(|most| PrefetchWindow::new(&mut self.marker, &self.held, most, layout.units()));
        let mut walked = if ahead.is_some() { 0 } else { self.walked };
        while walked < end {
            let unit = uses[(from + walked) % uses.len()];
            if let Some(ahead) = &mut ahead
                && !ahead.admits(unit)
            {
                break;
            }
            if !ring.is_loaded(unit) {
                if !ring.may_prefetch(layout, unit, from, walked) {
                    break;
                }
                ring.load(&*shared.backend, layout, unit)?;
                counters.copies += 1;
                counters.copied_bytes += layout.bytes(unit);
            }
            walked += 1;
        }
        self.walked = walked;
        Ok(())
    }
}
