//! What to change, as text.

use memlab_advice::{Advice, Advices, Tried};

use super::sections::wrapped;
use crate::format::{self, Units};
use crate::text::clean;

fn size(bytes: u64) -> String {
    format::bytes(bytes, Units::Auto)
}

/// What to do.
pub fn advised(advices: &Advices, columns: usize) -> Vec<String> {
    let mut lines = vec![title(advices)];
    for (number, advice) in (1..).zip(&advices.advice) {
        lines.extend(wrapped(&format!("  {number}."), &clean(&summary(advice)), columns));
        lines.extend(wrapped("    ", &clean(&advice.because), columns));
        lines.extend(advice.how.lines().map(|line| format!("       {}", clean(line))));
    }
    lines
}

/// What is advised on.
pub(super) fn title(advices: &Advices) -> String {
    let Advices { device, peak_bytes, target_bytes, .. } = advices;
    let aim = target_bytes.map(|target| format!(", {} wanted", size(target))).unwrap_or_default();
    let peak = format!("{} allocated at the peak of cuda:{device}{aim}", size(*peak_bytes));
    match advices.advice.is_empty() {
        true => format!("Advice: nothing to change ({peak})"),
        false => format!("Advice, each by itself, best first ({peak})"),
    }
}

/// What it is, what it saves and what it costs.
pub(super) fn summary(advice: &Advice) -> String {
    let Advice { kind, place, saved_bytes, figure, bytes_after, cost_ns, .. } = advice;
    let before = saved_bytes.saturating_add(*bytes_after);
    let figure = figure.as_str();
    let cost = match cost_ns {
        None => "what it costs is not known".to_owned(),
        Some(0) => "costs no GPU time".to_owned(),
        Some(cost) => format!("costs {} of GPU time a step", format::duration(*cost)),
    };
    format!(
        "{} ({place}): saves {}, from {} {figure} to {}; {cost}",
        kind.title(),
        size(*saved_bytes),
        size(before),
        size(*bytes_after)
    )
}

/// What was tried and is not advised.
pub fn tried(advices: &Advices, columns: usize) -> Vec<String> {
    if advices.tried.is_empty() {
        return Vec::new();
    }
    let mut lines = vec!["Tried, and not advised".to_owned()];
    for tried in &advices.tried {
        lines.extend(wrapped("  -", &clean(&place_of_tried(tried)), columns));
    }
    lines
}

/// What was tried, and what came of it.
pub(super) fn place_of_tried(tried: &Tried) -> String {
    format!("{} ({}): {}", tried.kind.title(), tried.place, tried.because)
}

/// The chapter of a report; nothing if there is nothing to change.
pub(super) fn chapter(advices: Option<&Advices>, columns: usize) -> Vec<String> {
    let Some(advices) = advices.filter(|advices| !advices.advice.is_empty()) else { return Vec::new() };
    let mut lines = advised(advices, columns);
    lines.extend(tried(advices, columns));
    lines
}
