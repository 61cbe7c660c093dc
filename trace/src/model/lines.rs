//! Views by line, and the choice of the scope of lines.
//!
//! The ledger keeps a line book for each scope ([`super::line_book`]). The scope of libraries helps if a line of the program
//! only calls a library.

use std::sync::Arc;

use super::code_origin::CodeOrigin;
use super::device::DeviceState;
use super::history_views::GrowthView;
use super::line::Line;
use super::process_state::Model;
use super::scope::Scope;
use super::views::{LineView, PrivatePoolView};

impl Model {
    /// Returns the scope of [`lines`](Self::lines) and [`line_of`](Self::line_of).
    pub fn scope(&self) -> Scope {
        self.scope
    }

    /// Sets the scope of [`lines`](Self::lines) and [`line_of`](Self::line_of).
    ///
    /// `None` selects the program's lines, unless they explain nothing of the device with the highest peak (see
    /// [`dominant_library_call`](Self::dominant_library_call)).
    pub fn set_scope(&mut self, scope: Option<Scope>) {
        self.scope = scope.unwrap_or_else(|| {
            let says_nothing = self.fullest_device().is_some_and(|device| self.dominant_library_call(device).is_some());
            if says_nothing { Scope::Libraries } else { Scope::Users }
        });
    }

    fn fullest_device(&self) -> Option<i32> {
        let allocated =
            |(index, state): (i32, &Option<Box<DeviceState>>)| Some((state.as_ref()?.totals.peak.allocated, index));
        (0..).zip(&self.devices).filter_map(allocated).max_by_key(|(bytes, _)| *bytes).map(|(_, index)| index)
    }

    /// Returns the memory of every line on a device, by bytes at the peak.
    ///
    /// The lines sum to the allocated bytes. Their scope is that of [`set_scope`](Self::set_scope).
    pub fn lines(&self, device: i32) -> Vec<LineView> {
        self.lines_in(device, self.scope)
    }

    /// Returns the memory of every line of `scope` on a device, by bytes at the peak.
    ///
    /// The lines sum to the allocated bytes.
    pub fn lines_in(&self, device: i32, scope: Scope) -> Vec<LineView> {
        self.device_state(device).map(|state| state.lines(scope, &self.symbols)).unwrap_or_default()
    }

    /// Returns the lines that hold more at the end of the last step than after warm-up, largest growth first.
    ///
    /// Their scope is that of [`set_scope`](Self::set_scope).
    pub fn growth(&self, device: i32) -> Vec<GrowthView> {
        self.growth_in(device, self.scope)
    }

    /// Returns the lines of `scope` that hold more at the end of the last step than after warm-up, largest growth first.
    pub fn growth_in(&self, device: i32, scope: Scope) -> Vec<GrowthView> {
        let growth = |state: &DeviceState| state.growth.view(&state.ledger, scope, &self.symbols);
        self.device_state(device).map(growth).unwrap_or_default()
    }

    /// Returns the line that counts a stack: its innermost frame of the best [`CodeOrigin`].
    ///
    /// The scope is that of [`set_scope`](Self::set_scope). `None`: the stack has no frames.
    pub fn line_of(&self, stack: u32) -> Option<Arc<Line>> {
        self.line_in(stack, self.scope)
    }

    /// Returns the [private pools](Self::private_pools) of a device by the line that captured their first graph, largest
    /// first.
    pub fn private_pools_by_line(&self, device: i32) -> Vec<(Option<Arc<Line>>, Vec<PrivatePoolView>)> {
        let mut groups: Vec<(Option<Arc<Line>>, Vec<PrivatePoolView>)> = Vec::new();
        for pool in self.private_pools(device) {
            let line = pool.stacks.first().and_then(|stack| self.line_of(*stack));
            match groups.iter_mut().find(|(known, _)| *known == line) {
                Some((_, pools)) => pools.push(pool),
                None => groups.push((line, vec![pool])),
            }
        }
        groups.sort_by_key(|(_, pools)| std::cmp::Reverse(pools.iter().map(|pool| pool.reserved_bytes).sum::<u64>()));
        groups
    }

    /// Returns the line that counts a stack in `scope`; `None`: the stack has no frames.
    pub fn line_in(&self, stack: u32, scope: Scope) -> Option<Arc<Line>> {
        self.symbols.frame_of(stack, scope).map(|frame| frame.line.clone())
    }

    /// Returns the origin of a line's code.
    pub fn code_origin(&self, line: &Line) -> CodeOrigin {
        self.symbols.code_origin(line)
    }

    /// Returns the origins of a stack's frames, in the order of [`frames`](Self::frames).
    pub fn frame_origins(&self, stack: u32) -> Vec<CodeOrigin> {
        self.symbols.climb(stack).map(|frame| frame.origin).collect()
    }

    /// Returns the program's line that holds more than half of a device's peak, if it merely calls a library.
    ///
    /// The library allocated nearly all of that memory. Otherwise returns `None`.
    pub fn dominant_library_call(&self, device: i32) -> Option<Arc<Line>> {
        let state = self.device_state(device)?;
        let most = state.lines(Scope::Users, &self.symbols).into_iter().next()?;
        let line = most.line.filter(|line| self.code_origin(line) == CodeOrigin::User)?;
        if most.live_bytes_at_peak <= state.totals.peak.allocated / 2 {
            return None;
        }
        let with_libraries = state.lines(Scope::Libraries, &self.symbols);
        let own = with_libraries.iter().find(|view| view.line.as_ref() == Some(&line));
        let own = own.map_or(0, |view| view.live_bytes_at_peak);
        (own <= most.live_bytes_at_peak / 10).then_some(line)
    }
}
