//! Lines with those of libraries: what a user's line that only calls a library leaves open.
//!
//! The ledger keeps the user's lines, with their own high-water marks. Here the same cells are summed up by other lines,
//! when that is asked for.

use std::sync::Arc;

use hashbrown::HashMap;

use super::Model;
use super::device::DeviceState;
use super::symbols::Symbols;
use super::views::{Line, LineView};
use super::whose::{Scope, Whose};
use crate::record::Phase;

impl Model {
    /// Whose lines [`lines`](Self::lines) and [`line_of`](Self::line_of) tell.
    pub fn scope(&self) -> Scope {
        self.scope
    }

    /// Has [`lines`](Self::lines) and [`line_of`](Self::line_of) tell the lines of `scope`. `None`: the user's, unless
    /// those say nothing of the device that most was allocated on (see [`only_calls`](Self::only_calls)).
    pub fn choose(&mut self, scope: Option<Scope>) {
        self.scope = scope.unwrap_or_else(|| {
            let says_nothing = self.fullest_device().is_some_and(|device| self.only_calls(device).is_some());
            if says_nothing { Scope::Libraries } else { Scope::Users }
        });
    }

    fn fullest_device(&self) -> Option<i32> {
        let allocated =
            |(index, state): (i32, &Option<Box<DeviceState>>)| Some((state.as_ref()?.totals.peak.allocated, index));
        (0..).zip(&self.devices).filter_map(allocated).max_by_key(|(bytes, _)| *bytes).map(|(_, index)| index)
    }

    /// What every line of `scope` holds on a device, the most at the peak first. They sum to what is allocated. Of the
    /// libraries' lines [`LineView::peak_live_bytes`] is not known, and 0.
    pub fn lines_in(&self, device: i32, scope: Scope) -> Vec<LineView> {
        let Some(state) = self.state(device) else { return Vec::new() };
        match scope {
            Scope::Users => state.lines(&self.symbols),
            Scope::Libraries => state.lines_with_libraries(&self.symbols),
        }
    }

    /// The line a stack belongs to in `scope`; `None`: it has no frames.
    pub fn line_in(&self, stack: u32, scope: Scope) -> Option<Arc<Line>> {
        self.symbols.frame_of(stack, scope).map(|frame| frame.line.clone())
    }

    /// Whose code a line is.
    pub fn whose(&self, line: &Line) -> Whose {
        self.symbols.whose(line)
    }

    /// Whose code the frames of a stack are, in the order of [`frames`](Self::frames).
    pub fn whose_frames(&self, stack: u32) -> Vec<Whose> {
        self.symbols.climb(stack).map(|frame| frame.whose).collect()
    }

    /// The line of the user's that holds more than half of a device's peak and says nothing of it, because nearly all of
    /// that was allocated by a library that it calls.
    pub fn only_calls(&self, device: i32) -> Option<Arc<Line>> {
        let state = self.state(device)?;
        let most = state.lines(&self.symbols).into_iter().next()?;
        let line = most.line.filter(|line| self.whose(line) == Whose::User)?;
        if most.live_bytes_at_peak <= state.totals.peak.allocated / 2 {
            return None;
        }
        let mut lines = LinesOfStacks::new(&self.symbols, Scope::Libraries);
        let cells = state.ledger.cells.iter().map(|cell| (cell.key.stack, state.ledger.at_peak(cell)));
        let own = cells.filter(|(_, bytes)| *bytes > 0).filter(|(stack, _)| lines.of(*stack).as_ref() == Some(&line));
        let own = own.fold(0_u64, |sum, (_, bytes)| sum.saturating_add(bytes));
        (own <= most.live_bytes_at_peak / 10).then_some(line)
    }
}

/// The lines of stacks, each looked for once: a device has more cells than there are stacks.
pub(crate) struct LinesOfStacks<'s> {
    symbols: &'s Symbols,
    scope: Scope,
    known: HashMap<u32, Option<Arc<Line>>>,
}

impl<'s> LinesOfStacks<'s> {
    pub(crate) fn new(symbols: &'s Symbols, scope: Scope) -> Self {
        Self { symbols, scope, known: HashMap::new() }
    }

    pub(crate) fn of(&mut self, stack: u32) -> Option<Arc<Line>> {
        let (symbols, scope) = (self.symbols, self.scope);
        let find = || symbols.frame_of(stack, scope).map(|frame| frame.line.clone());
        self.known.entry(stack).or_insert_with(find).clone()
    }
}

impl DeviceState {
    fn lines_with_libraries(&self, symbols: &Symbols) -> Vec<LineView> {
        let mut lines = LinesOfStacks::new(symbols, Scope::Libraries);
        let mut views: HashMap<Option<Arc<Line>>, LineView> = HashMap::new();
        for cell in &self.ledger.cells {
            let line = lines.of(cell.key.stack);
            let view =
                views.entry(line).or_insert_with_key(|line| LineView { line: line.clone(), ..LineView::default() });
            let at_peak = self.ledger.at_peak(cell);
            let is_backward = cell.key.phase == Phase::Backward;
            for (figure, more) in [
                (&mut view.allocations, cell.allocations),
                (&mut view.allocated_bytes, cell.allocated_bytes),
                (&mut view.live_bytes, cell.bytes),
                (&mut view.live_blocks, cell.blocks),
                (&mut view.live_bytes_at_peak, at_peak),
                (&mut view.backward_bytes, if is_backward { cell.bytes } else { 0 }),
                (&mut view.backward_bytes_at_peak, if is_backward { at_peak } else { 0 }),
            ] {
                *figure = figure.saturating_add(more);
            }
        }
        let mut views: Vec<LineView> = views.into_values().filter(|view| view.allocations > 0).collect();
        views.sort_by(|a, b| {
            let (of_a, of_b) = ((a.live_bytes_at_peak, a.allocated_bytes), (b.live_bytes_at_peak, b.allocated_bytes));
            of_b.cmp(&of_a).then_with(|| a.line.cmp(&b.line))
        });
        views
    }
}
