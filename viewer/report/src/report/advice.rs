//! Advice as text.

use memlab_predict::advice::{Advice, AdviceReport, Batch, Combination, Cost, Kind, RejectedAdvice};

use memlab_base::text::{clean, wrapped};
use memlab_trace::Framework;
use memlab_units::format::{self, size};

/// Explanation of the savings and of their order.
pub(super) const ORDER: &str = "Savings of each change alone; of similar savings, the cheapest first";

/// Lines of the advice.
pub fn advised(advices: &AdviceReport, columns: usize) -> Vec<String> {
    let mut lines = vec![title(advices)];
    if !advices.advice.is_empty() {
        lines.push(format!("  {ORDER}"));
    }
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
    let change = match (&advices.after_out_of_memory, advices.advice.is_empty()) {
        (Some(_), _) => " before an out-of-memory error",
        (None, true) => ": nothing to change",
        (None, false) => "",
    };
    format!("Advice for the peak of cuda:{device}, {} allocated{aim}{change}", size(*peak_bytes))
}

/// Name, saving and cost of a piece of advice.
pub(super) fn summary(advice: &Advice) -> String {
    let Advice { kind, place, saved_bytes, figure, bytes_after, cost, .. } = advice;
    let before = saved_bytes.saturating_add(*bytes_after);
    let (figure, cost) = (figure.as_str(), costs(*cost, &[*kind]));
    format!(
        "{} ({place}): saves {}, leaving {} of {} {figure}; {cost}",
        kind.title(),
        size(*saved_bytes),
        size(*bytes_after),
        size(before)
    )
}

/// Cost of changes of these kinds.
fn costs(Cost { cost_ns, gpu_ns }: Cost, kinds: &[Kind]) -> String {
    let is_copied = |kind: &Kind| matches!(kind, Kind::OffloadActivations | Kind::OffloadOptimizerState);
    let of = match kinds.iter().filter(|kind| is_copied(kind)).count() {
        0 => "GPU time",
        copied if copied == kinds.len() => "waiting for copies",
        _ => "GPU time and waiting for copies",
    };
    match (cost_ns, gpu_ns) {
        (Some(0), _) => "costs no GPU time".to_owned(),
        (Some(cost), _) => format!("costs {} a step", format::time_spent(cost)),
        (None, Some(0)) => format!("costs no {of}"),
        (None, Some(time)) => format!("costs {} of {of} a step", format::time_spent(time)),
        (None, None) => "cost unknown".to_owned(),
    }
}

/// Combined effect of the advice, combinations that reach the target, and the batch that fits.
pub(super) fn conclusions(advices: &AdviceReport) -> Vec<String> {
    let mut lines = Vec::new();
    lines.extend(advices.after_out_of_memory.as_ref().map(|next| format!("After the out-of-memory error: {next}")));
    if let Some(waits) = &advices.waits_for_host {
        lines.push(format!(
            "The GPU waits for the host: a step takes {}, of which {} are GPU work. The costs above are additional GPU time \
             or time of copies; their effect on the time of a step is unknown",
            format::time_spent(waits.step_ns),
            format::time_spent(waits.work_ns)
        ));
    }
    if let Some(together) = &advices.together {
        let Combination { saved_bytes, bytes_after, cost, .. } = together;
        let (saved, after) = (size(*saved_bytes), size(*bytes_after));
        lines.push(format!(
            "{} together save {saved}, leaving {after} allocated; {}",
            changes(advices, together),
            costs(*cost, &together.kinds)
        ));
    }
    match (advices.target_bytes, &advices.reaching) {
        (Some(target), _) if advices.peak_bytes <= target => {}
        (Some(_), Some(set)) => lines.push(format!(
            "{} the target: {} allocated; {}",
            match set.kinds.len() {
                1 => format!("{} alone reaches", changes(advices, set)),
                _ => format!("{} together reach", changes(advices, set)),
            },
            size(set.bytes_after),
            costs(set.cost, &set.kinds)
        )),
        (Some(target), None) => lines.push(format!("No combination of these changes fits in {}", size(target))),
        (None, _) => {}
    }
    lines.extend(advices.batch.as_ref().map(|batch| fitting(advices, batch)));
    lines.extend(advices.no_batch.map(|because| format!("No batch that fits is estimated: {because}")));
    let is_unknown = |advice: &Advice| advice.cost == Cost::UNKNOWN;
    if !advices.has_gpu_times && advices.advice.iter().any(is_unknown) {
        lines.push(
            "Costs are unknown: the run was recorded without GPU times. Record again with `memlab run --time`"
                .to_owned(),
        );
    }
    lines
}

/// The batch that fits, by the name that the framework gives its size.
fn fitting(advices: &AdviceReport, batch: &Batch) -> String {
    let (times, bound) = match batch.percent {
        percent if percent == Batch::MAX_PERCENT => (format!("{}", percent / 100), " (the largest batch tried)"),
        percent => (format!("{}.{:02}", percent / 100, percent % 100), ""),
    };
    let (what, accumulation) = match advices.framework {
        Some(Framework::Transformers) => ("per_device_train_batch_size", "gradient_accumulation_steps"),
        Some(Framework::Lightning) => ("A batch of the DataLoader", "accumulate_grad_batches"),
        Some(Framework::Accelerate) => ("A batch of the DataLoader", "gradient_accumulation_steps"),
        None => ("A batch", ""),
    };
    let more = if batch.percent < 100 && !accumulation.is_empty() {
        format!(". As many times the {accumulation} keep the batch of a step")
    } else {
        String::new()
    };
    let (limit, after) = (size(batch.limit_bytes), size(batch.bytes_after));
    match advices.target_bytes {
        Some(_) => format!("{what} {times} times as large should reach the target{bound}: {after} allocated{more}"),
        None => format!(
            "{what} {times} times as large should fit{bound}: {after} allocated, of {limit} that PyTorch can allocate on \
             this device{more}"
        ),
    }
}

/// `Changes 1, 3 and 4`: positions in the list of the advice in a combination.
fn changes(advices: &AdviceReport, set: &Combination) -> String {
    let numbered = (1..).zip(&advices.advice).filter(|(_, advice)| set.kinds.contains(&advice.kind));
    let numbers: Vec<String> = numbered.map(|(number, _): (usize, _)| number.to_string()).collect();
    match &*numbers {
        [first @ .., last] if !first.is_empty() => format!("Changes {} and {last}", first.join(", ")),
        numbers => format!("Change {}", numbers.concat()),
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
    let RejectedAdvice { kind, place, because } = tried;
    match (kind, place.as_str()) {
        // No module qualifies, so the reason names them all.
        (Kind::Checkpoint, "modules") => format!("{}: {because}", kind.title()),
        _ => format!("{} ({place}): {because}", kind.title()),
    }
}

/// Chapter of a report; empty without advice.
pub(super) fn chapter(advices: Option<&AdviceReport>, columns: usize) -> Vec<String> {
    let Some(advices) = advices.filter(|advices| !advices.advice.is_empty()) else { return Vec::new() };
    let mut lines = advised(advices, columns);
    lines.extend(tried(advices, columns));
    lines
}
