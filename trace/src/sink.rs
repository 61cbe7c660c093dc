//! What takes the records of a trace.

use std::ops::ControlFlow;

use crate::model::Model;
use crate::record::Record;

/// Takes the records of a trace, one after the other.
pub trait Sink {
    /// Takes the next record. `Break`: it wants neither this one nor what follows.
    fn take(&mut self, record: Record<'_>) -> ControlFlow<()>;

    /// The state by what was taken.
    fn model(&self) -> &Model;

    /// The trace begins anew: forgets what was taken.
    fn restart(&mut self);
}

impl Sink for Model {
    #[inline]
    fn take(&mut self, record: Record<'_>) -> ControlFlow<()> {
        self.apply(record);
        ControlFlow::Continue(())
    }

    fn model(&self) -> &Model {
        self
    }

    fn restart(&mut self) {
        *self = Self::new();
    }
}
