//! The two compared steps, and their comparison in the snapshot.

use memlab_trace::{SeekTarget, StepView};

use super::state::StepsScreen;
use crate::context::Context;
use memlab_base::query::{Comparison, ComparisonQuery};

/// Counterpart of the first step.
const START: SeekTarget = SeekTarget::Event(0);

impl StepsScreen {
    /// The two steps whose ends are compared: the marked ones, or else the one under the cursor and its predecessor.
    ///
    /// The first step is compared with the start of the trace.
    pub fn compared_steps(&self, context: &Context) -> Option<(Option<StepView>, StepView)> {
        let steps = &context.device()?.steps;
        let at = |end: u64| steps.iter().position(|step| step.end_time == end);
        if let Some((before, after)) = self.marked_steps(context) {
            return Some((Some(before), after));
        }
        let after = at(self.selected_step(context)?.end_time)?;
        Some((after.checked_sub(1).map(|before| steps[before]), steps[after]))
    }

    /// The two marked steps, earlier first; `None`: fewer than two are marked on this device.
    pub fn marked_steps(&self, context: &Context) -> Option<(StepView, StepView)> {
        let [one, other] = *self.marks else { return None };
        let steps = &context.device()?.steps;
        let of = |end: u64| steps.iter().find(|step| step.end_time == end).copied();
        Some((of(one.min(other))?, of(one.max(other))?))
    }

    /// Comparison to look up.
    pub fn comparison_query(&self, context: &Context) -> Option<ComparisonQuery> {
        let (before, after) = self.compared_steps(context)?;
        Some(ComparisonQuery {
            trace: context.process()?.path.clone(),
            device: context.device()?.totals.index,
            before: before.map_or(START, |before| end_of(&before)),
            after: end_of(&after),
        })
    }

    /// The requested comparison, if it has arrived.
    pub fn comparison<'c>(&self, context: &'c Context) -> Option<&'c Comparison> {
        let comparison = context.snapshot.comparison.as_deref()?;
        (Some(&comparison.of) == self.comparison_query(context).as_ref()).then_some(comparison)
    }

    /// The latest comparison, if it is of the displayed device, with its steps.
    ///
    /// While another one is being looked up, this may not be the requested one.
    pub(super) fn latest_comparison<'c>(
        &self,
        context: &'c Context,
    ) -> Option<(&'c Comparison, Option<StepView>, StepView)> {
        let comparison = context.snapshot.comparison.as_deref()?;
        let of = &comparison.of;
        let device = context.device()?;
        if of.trace != context.process()?.path || of.device != device.totals.index {
            return None;
        }
        let step = |at: SeekTarget| device.steps.iter().find(|step| end_of(step) == at).copied();
        let before = if of.before == START { None } else { Some(step(of.before)?) };
        Some((comparison, before, step(of.after)?))
    }

    /// True if a requested comparison has not arrived.
    pub fn awaits_comparison(&self, context: &Context) -> bool {
        let wanted = self.comparison_query(context);
        wanted.is_some() && context.snapshot.comparison.as_deref().map(|comparison| &comparison.of) != wanted.as_ref()
    }
}

/// Moment of a step's end.
fn end_of(step: &StepView) -> SeekTarget {
    SeekTarget::event(step.end_event, step.end_time)
}
