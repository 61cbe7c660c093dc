//! What to change, as text.

use std::io::{self, Write};

use memlab_advice::{Advice, Advices, Figure};

use super::sections::wrapped;
use super::text::write_parts;
use crate::format::{self, Units};
use crate::text::{Style, clean};

/// Writes what to change.
///
/// # Errors
///
/// What `out` says.
pub fn write_advice(out: &mut impl Write, advices: &Advices, style: Style) -> io::Result<()> {
    write_parts(out, vec![advised(advices, style.columns), tried(advices, style.columns)], style)
}

fn size(bytes: u64) -> String {
    format::bytes(bytes, Units::Auto)
}

/// What to do.
pub(super) fn advised(advices: &Advices, columns: usize) -> Vec<String> {
    let Advices { device, peak_bytes, target_bytes, .. } = advices;
    let aim = target_bytes.map(|target| format!(", {} wanted", size(target))).unwrap_or_default();
    let peak = format!("{} allocated at the peak of cuda:{device}{aim}", size(*peak_bytes));
    if advices.advice.is_empty() {
        return vec![format!("Advice: nothing to change ({peak})")];
    }
    let mut lines = vec![format!("Advice, each by itself, best first ({peak})")];
    for (number, advice) in (1..).zip(&advices.advice) {
        lines.extend(wrapped(&format!("  {number}. "), &clean(&summary(advice)), columns));
        lines.extend(wrapped("     ", &clean(&advice.because), columns));
        lines.extend(advice.how.lines().map(|line| format!("       {}", clean(line))));
    }
    lines
}

/// What it is, what it saves and what it costs.
fn summary(advice: &Advice) -> String {
    let Advice { kind, place, saved_bytes, figure, bytes_after, cost_ns, .. } = advice;
    let before = saved_bytes.saturating_add(*bytes_after);
    let figure = match figure {
        Figure::Allocated => "allocated",
        Figure::Reserved => "reserved",
        Figure::Used => "in use",
    };
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

/// What does not help.
pub(super) fn tried(advices: &Advices, columns: usize) -> Vec<String> {
    if advices.tried.is_empty() {
        return Vec::new();
    }
    let mut lines = vec!["Tried, and of no use".to_owned()];
    for tried in &advices.tried {
        let words = format!("{} ({}): {}", tried.kind.title(), tried.place, tried.because);
        lines.extend(wrapped("  -", &clean(&words), columns));
    }
    lines
}
