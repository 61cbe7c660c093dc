//! Tables of lines whose memory grew: over the run, and over the steps or iterations of a finding that cover a part of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use memlab_trace::{AccumulationSpan, AccumulationView, GrowthUnit, Line, Model};
use memlab_units::format::{counted, size};

/// Lines whose memory grew from one moment to another, largest growth first.
pub(super) struct GrowthTable {
    /// `the ends of steps 1 and 29`
    pub moments: String,
    /// `a step`
    pub rate_title: &'static str,
    /// True if a line grows as a leak does, repeatedly and without an end.
    is_leak: bool,
    pub lines: Vec<GrownLine>,
}

pub(super) struct GrownLine {
    /// `None`: no Python frame.
    pub line: Option<Arc<Line>>,
    pub from_bytes: u64,
    pub to_bytes: u64,
    /// Bytes per step or iteration.
    pub rate: u64,
}

impl GrownLine {
    pub(super) fn growth(&self) -> u64 {
        self.to_bytes.saturating_sub(self.from_bytes)
    }
}

impl GrowthTable {
    /// `14.0 MiB on 2 lines`, `20.0 MiB on one line, no leak found`, or `none`
    pub(super) fn total(&self) -> String {
        if self.lines.is_empty() {
            return "none".to_owned();
        }
        let total = self.lines.iter().map(GrownLine::growth).fold(0, u64::saturating_add);
        let lines =
            if self.lines.len() == 1 { "one line".to_owned() } else { counted(self.lines.len() as u64, "line") };
        format!("{} on {lines}{}", size(total), if self.is_leak { "" } else { ", no leak found" })
    }
}

/// Tables of a device. Memory that grew until a release has a table of its window in place of that of the run, unless other
/// memory grew over the run.
pub(super) fn tables(model: &Model, device: i32) -> Vec<GrowthTable> {
    let Some(compared) = model.growth_moments(device) else { return Vec::new() };
    let accumulations = model.accumulations(device);
    let has = |is: fn(&AccumulationSpan) -> bool| accumulations.iter().any(|accumulation| is(&accumulation.span));
    let is_leak = has(|span| matches!(span, AccumulationSpan::Steps { .. } | AccumulationSpan::Iterations { .. }));
    let of_run = is_leak || !has(|span| matches!(span, AccumulationSpan::Released { .. }));
    let run = of_run.then(|| GrowthTable {
        moments: between(compared.unit, compared.from, compared.to),
        rate_title: rate_title(compared.unit),
        is_leak,
        lines: model
            .growth(device)
            .into_iter()
            .map(|view| GrownLine {
                line: view.line,
                from_bytes: view.from_bytes,
                to_bytes: view.to_bytes,
                rate: view.bytes_per_step.max(0.0) as u64,
            })
            .collect(),
    });
    let parts = accumulations.iter().filter_map(|accumulation| of_part(accumulation, compared.unit));
    run.into_iter().chain(parts).collect()
}

/// Table of memory that grew over a part of the run; `None` for memory that grew over the run.
fn of_part(accumulation: &AccumulationView, unit: GrowthUnit) -> Option<GrowthTable> {
    let (from, to, unit, after) = match accumulation.span {
        AccumulationSpan::Released { from, to, .. } => (from, to, unit, ", then freed"),
        AccumulationSpan::AfterSteps { from, to } => (from, to, GrowthUnit::Iterations, " after the last step"),
        _ => return None,
    };
    let mut by_line: BTreeMap<Option<Arc<Line>>, (u64, u64)> = BTreeMap::new();
    for stack in &accumulation.stacks {
        let (before, grown) = by_line.entry(stack.line.clone()).or_default();
        *before = before.saturating_add(stack.before);
        *grown = grown.saturating_add(stack.bytes);
    }
    let passed = to.saturating_sub(from).max(1);
    let line = |(line, (before, grown)): (_, (u64, u64))| GrownLine {
        line,
        from_bytes: before,
        to_bytes: before.saturating_add(grown),
        rate: grown / passed,
    };
    let mut lines: Vec<GrownLine> = by_line.into_iter().map(line).collect();
    lines.sort_by_key(|line| std::cmp::Reverse(line.growth()));
    Some(GrowthTable {
        moments: format!("{}{after}", between(unit, from, to)),
        rate_title: rate_title(unit),
        is_leak: true,
        lines,
    })
}

/// `from` and `to` are counts; steps and iterations are numbered from 0.
fn between(unit: GrowthUnit, from: u64, to: u64) -> String {
    let moments = match unit {
        GrowthUnit::Steps => "the ends of steps",
        GrowthUnit::Iterations => "iterations",
    };
    format!("{moments} {} and {}", from.saturating_sub(1), to.saturating_sub(1))
}

fn rate_title(unit: GrowthUnit) -> &'static str {
    match unit {
        GrowthUnit::Steps => "a step",
        GrowthUnit::Iterations => "an iteration",
    }
}
