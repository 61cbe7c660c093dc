//! Sinks for the records of a trace.

use std::ops::ControlFlow;

use crate::model::Model;
use memlab_format::record::Record;

/// Takes the records of a trace one by one.
pub trait Sink {
    /// Takes the next record. `Break` refuses it, and all after it.
    fn take(&mut self, record: Record<'_>) -> ControlFlow<()>;

    /// Returns the state after the records taken so far.
    fn model(&self) -> &Model;

    /// Forgets all records, because the trace starts again.
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
