//! Compute time between two points, from events in the reader's stream.
//!
//! The events are read on request.

use crate::backend::{Backend, Event, Stream};
use crate::error::Result;

/// Measurements of one forward.
#[derive(Default)]
pub struct Timing {
    /// Point → events at its start and end, and true if they were recorded in this forward.
    points: Vec<Option<(Event, Event, bool)>>,
    open: Option<usize>,
    /// Last point that was left.
    last: Option<usize>,
}

impl Timing {
    /// Starts a forward with `points` points.
    pub fn restart(&mut self, points: usize) {
        self.points.resize(points.max(self.points.len()), None);
        self.points.iter_mut().flatten().for_each(|pair| pair.2 = false);
        (self.open, self.last) = (None, None);
    }

    /// Starts the compute of a point whose weights are on the device.
    ///
    /// A thread that reaches the same point again continues its compute.
    pub fn begin(&mut self, backend: &dyn Backend, point: usize, stream: Stream) -> Result<()> {
        let pair = match &mut self.points[point] {
            Some(pair) => pair,
            none => none.insert((backend.create_event(true)?, backend.create_event(true)?, false)),
        };
        self.open = Some(point);
        if self.last == Some(point) {
            return Ok(());
        }
        backend.record(pair.0, stream)
    }

    /// Ends the compute of the open point, at the next point or at the end.
    pub fn end(&mut self, backend: &dyn Backend, stream: Stream) -> Result<()> {
        if let Some(point) = self.open.take()
            && let Some(pair) = &mut self.points[point]
        {
            backend.record(pair.1, stream)?;
            pair.2 = true;
            self.last = Some(point);
        }
        Ok(())
    }

    /// Returns the nanoseconds of each point, 0 for points that the forward did not reach.
    ///
    /// Waits for the last point.
    pub fn read(&self, backend: &dyn Backend, points: usize) -> Result<Vec<u64>> {
        let of = |point: usize| match self.points.get(point) {
            Some(&Some((begin, end, true))) => backend.elapsed_ns(begin, end).map(|ns| ns.max(1)),
            _ => Ok(0),
        };
        (0..points).map(of).collect()
    }

    pub fn destroy(&mut self, backend: &dyn Backend) {
        for (begin, end, _) in self.points.drain(..).flatten() {
            backend.destroy_event(begin);
            backend.destroy_event(end);
        }
    }
}
