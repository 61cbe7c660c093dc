//! Advice as text.

use memlab_predict::advice::{Advice, AdviceReport, Batch, Combination, Cost, RejectedAdvice};

use super::sections::wrapped;
use memlab_base::text::clean;
use memlab_units::format::{self, size};

/// Lines of the advice.
pub fn advised(advices: &AdviceReport, columns: usize) -> Vec<String> {
    let mut lines = vec![title(advices)];
    for (number, advice) in (1..).zip(&advices.advice) {
        lines.extend(wrapped(&format!("  {number}."), &clean(&summary(advice)), columns));
        lines.extend(wrapped("    ", &clean(&advice.because), columns));
        lines.extend(advice.how.lines().map(|line| format!("       {}", clean(line))));
    }
    lines.extend(conclusions(advices).iter().flat_map(|line| wrapped("  =", line, columns)));
    lines
}

/// Title: the peak, and the target if one is given.
pub fn title(advices: &AdviceReport) -> String {
    let AdviceReport { device, peak_bytes, target_bytes, .. } = advices;
    let aim = target_bytes.map(|target| format!(", target {}", size(target))).unwrap_or_default();
    let peak = format!("{} allocated at the peak of cuda:{device}{aim}", size(*peak_bytes));
    match advices.advice.is_empty() {
        true => format!("Advice: nothing to change ({peak})"),
        false => format!("Advice, each change alone, best first ({peak})"),
    }
}

/// Name, saving and cost of a piece of advice.
pub(super) fn summary(advice: &Advice) -> String {
    let Advice { kind, place, saved_bytes, figure, bytes_after, cost, .. } = advice;
    let before = saved_bytes.saturating_add(*bytes_after);
    let (figure, cost) = (figure.as_str(), costs(*cost));
    format!(
        "{} ({place}): saves {}, from {} {figure} to {}; {cost}",
        kind.title(),
        size(*saved_bytes),
        size(before),
        size(*bytes_after)
    )
}

fn costs(Cost { cost_ns, gpu_ns }: Cost) -> String {
    match (cost_ns, gpu_ns) {
        (Some(0), _) => "costs no time".to_owned(),
        (Some(cost), _) => format!("costs {} a step", format::time_spent(cost)),
        (None, Some(0)) => "costs no GPU time".to_owned(),
        (None, Some(time)) => format!("costs {} of GPU time a step", format::time_spent(time)),
        (None, None) => "cost unknown".to_owned(),
    }
}

/// Combined effect of the advice, combinations that reach the target, and the batch that fits.
pub(super) fn conclusions(advices: &AdviceReport) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(waits) = &advices.waits_for_host {
        lines.push(format!(
            "The GPU waits for the host: a step takes {}, and its GPU work {}. The cost of a change is therefore its GPU \
             time; its effect on step time is unknown",
            format::time_spent(waits.step_ns),
            format::time_spent(waits.work_ns)
        ));
    }
    if let Some(together) = &advices.together {
        let Combination { saved_bytes, bytes_after, cost, .. } = together;
        let (saved, after) = (size(*saved_bytes), size(*bytes_after));
        lines.push(format!(
            "{} together save {saved}: {after} allocated; {}",
            numbers(advices, together),
            costs(*cost)
        ));
    }
    match (advices.target_bytes, &advices.reaching) {
        (Some(target), _) if advices.peak_bytes <= target => {}
        (Some(target), Some(set)) => lines.push(format!(
            "With {} the run fits in {}: {} allocated; {}",
            numbers(advices, set),
            size(target),
            size(set.bytes_after),
            costs(set.cost)
        )),
        (Some(target), None) => lines.push(format!("No combination of these changes fits in {}", size(target))),
        (None, _) => {}
    }
    if let Some(batch) = &advices.batch {
        let (times, more) = match batch.percent {
            percent if percent == Batch::MAX_PERCENT => (format!("{}", percent / 100), ", and perhaps a larger one,"),
            percent => (format!("{}.{:02}", percent / 100, percent % 100), ""),
        };
        lines.push(format!(
            "A batch {times} times as large{more} should fit in {}: {} allocated",
            size(batch.limit_bytes),
            size(batch.bytes_after)
        ));
    }
    lines
}

/// `1, 3 and 4`: positions in the list of the advice in a combination.
fn numbers(advices: &AdviceReport, set: &Combination) -> String {
    let numbered = (1..).zip(&advices.advice).filter(|(_, advice)| set.kinds.contains(&advice.kind));
    let numbers: Vec<String> = numbered.map(|(number, _): (usize, _)| number.to_string()).collect();
    match &*numbers {
        [first @ .., last] if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        numbers => numbers.concat(),
    }
}

/// Changes that were tried and rejected.
pub fn tried(advices: &AdviceReport, columns: usize) -> Vec<String> {
    if advices.tried.is_empty() {
        return Vec::new();
    }
    let mut lines = vec!["Tried, but not advised".to_owned()];
    for tried in &advices.tried {
        lines.extend(wrapped("  -", &clean(&place_of_tried(tried)), columns));
    }
    lines
}

/// A rejected change with the reason.
pub(super) fn place_of_tried(tried: &RejectedAdvice) -> String {
    format!("{} ({}): {}", tried.kind.title(), tried.place, tried.because)
}

/// Chapter of a report; empty without advice.
pub(super) fn chapter(advices: Option<&AdviceReport>, columns: usize) -> Vec<String> {
    let Some(advices) = advices.filter(|advices| !advices.advice.is_empty()) else { return Vec::new() };
    let mut lines = advised(advices, columns);
    lines.extend(tried(advices, columns));
    lines
}
