//! Advice as text.

use memlab_predict::advice::{Advice, AdviceReport, Batch, Combination, Cost, Kind, RejectedAdvice};

use memlab_base::text::{Color, MAX_PROSE_COLUMNS, clean, width, wrapped};
use memlab_trace::Framework;
use memlab_units::format::{self, size};

/// Part of the advice that a line belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdvicePart {
    /// The title, or a heading.
    Title,
    /// Name and saving of a change; its index.
    Change(usize),
    /// Cost and reason of a change.
    Reason,
    /// Code of a change.
    Code,
    /// Everything else.
    Note,
}

impl AdvicePart {
    /// Colour of its lines; `None`: that of text.
    pub(super) fn color(self) -> Option<Color> {
        match self {
            Self::Title | Self::Change(_) => Some(Color::Title),
            Self::Reason => Some(Color::Dim),
            Self::Code => Some(Color::Green),
            Self::Note => None,
        }
    }
}

/// Explanation of the savings and of their order.
pub(super) fn order(advices: &AdviceReport) -> &'static str {
    match advices.target_bytes {
        Some(_) => {
            "Each saving is that of one change alone. Changes that reach the target come first, the cheapest first"
        }
        None => "Each saving is that of one change alone. The largest come first; of similar ones, the cheapest",
    }
}

/// Lines of the advice, for `columns`. Code is not wrapped.
pub fn advised(advices: &AdviceReport, columns: usize) -> Vec<(AdvicePart, String)> {
    let mut lines = vec![(AdvicePart::Title, title(advices))];
    let mut add = |part: AdvicePart, added: Vec<String>| lines.extend(added.into_iter().map(|line| (part, line)));
    if !advices.advice.is_empty() {
        add(AdvicePart::Note, wrapped(" ", order(advices), columns));
    }
    for (index, advice) in advices.advice.iter().enumerate() {
        add(AdvicePart::Change(index), heading(index, advice, columns));
        add(AdvicePart::Reason, wrapped("    ", &clean(&reason(advice)), columns));
        add(AdvicePart::Code, advice.how.lines().map(|line| format!("       {}", clean(line))).collect());
    }
    for line in conclusions(advices) {
        add(AdvicePart::Note, wrapped("  =", &line, columns));
    }
    lines
}

/// Number, name and, on the right, the saving of a change.
pub(super) fn heading(index: usize, advice: &Advice, columns: usize) -> Vec<String> {
    let (name, saving) = (name(advice), saving(advice));
    let mut lines = wrapped(&format!("  {}.", index + 1), &clean(&name), columns);
    let columns = columns.min(MAX_PROSE_COLUMNS);
    let Some(last) = lines.last_mut() else { return lines };
    let room = columns.saturating_sub(width(&saving));
    if width(last) + 2 <= room {
        *last += &format!("{}{saving}", " ".repeat(room - width(last)));
    } else {
        lines.push(format!("{}{saving}", " ".repeat(room)));
    }
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

/// Name and place of a change.
pub(super) fn name(Advice { kind, place, .. }: &Advice) -> String {
    format!("{} ({place})", kind.title())
}

/// Saving of a change: `saves 883 MiB of 1.44 GiB`.
pub(super) fn saving(Advice { saved_bytes, figure, bytes_after, .. }: &Advice) -> String {
    let before = size(saved_bytes.saturating_add(*bytes_after));
    format!("saves {} of {before} {}", size(*saved_bytes), figure.as_str())
}

/// Reason and, if known, cost of a change.
pub(super) fn reason(advice: &Advice) -> String {
    match costs(advice.cost, &[advice.kind]) {
        Some(cost) => format!("{} It {cost}.", advice.because),
        None => advice.because.clone(),
    }
}

/// Cost of changes of these kinds; `None`: unknown.
fn costs(Cost { cost_ns, gpu_ns }: Cost, kinds: &[Kind]) -> Option<String> {
    let is_copied = |kind: &Kind| matches!(kind, Kind::OffloadActivations | Kind::OffloadOptimizerState);
    let of = match kinds.iter().filter(|kind| is_copied(kind)).count() {
        0 => "GPU time",
        copied if copied == kinds.len() => "waiting for copies",
        _ => "GPU time and waiting for copies",
    };
    Some(match (cost_ns, gpu_ns) {
        (Some(0), _) => "costs no GPU time".to_owned(),
        (Some(cost), _) => format!("costs {} a step", format::time_spent(cost)),
        (None, Some(0)) => format!("costs no {of}"),
        (None, Some(time)) => format!("costs {} of {of} a step", format::time_spent(time)),
        (None, None) => return None,
    })
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
        let cost = costs(*cost, &together.kinds).map(|cost| format!(". This {cost}")).unwrap_or_default();
        let changes = changes(advices, together);
        lines.push(format!("{changes} save most together: {saved}, leaving {after} allocated{cost}"));
    }
    match (advices.target_bytes, &advices.reaching) {
        (Some(target), _) if advices.peak_bytes <= target => {}
        (Some(_), Some(set)) => lines.push(format!(
            "{} the target: {} allocated{}",
            match set.kinds.len() {
                1 => format!("{} alone reaches", changes(advices, set)),
                _ => format!("{} together reach", changes(advices, set)),
            },
            size(set.bytes_after),
            costs(set.cost, &set.kinds).map(|cost| format!(". This {cost}")).unwrap_or_default()
        )),
        (Some(target), None) => lines.push(format!("No combination of these changes fits in {}", size(target))),
        (None, _) => {}
    }
    lines.extend(advices.batch.as_ref().map(|batch| fitting(advices, batch)));
    lines.extend(advices.no_batch.map(|because| format!("No batch that fits is estimated: {because}")));
    let is_unknown = |advice: &Advice| advice.cost == Cost::UNKNOWN;
    if !advices.has_gpu_times && advices.advice.iter().any(is_unknown) {
        lines.push(
            "Costs that are not named are unknown: the run was recorded without GPU times. To estimate them, record with \
             `memlab run --time`"
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
            "{what} {times} times as large should fit{bound}: {after} allocated, of {limit} that fit on this device with \
             the run's fragmentation{more}"
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
pub fn tried(advices: &AdviceReport, columns: usize) -> Vec<(AdvicePart, String)> {
    if advices.tried.is_empty() {
        return Vec::new();
    }
    let mut lines = vec![(AdvicePart::Title, "Tried, but not advised".to_owned())];
    for tried in &advices.tried {
        let words = wrapped("  -", &clean(&place_of_tried(tried)), columns);
        lines.extend(words.into_iter().map(|line| (AdvicePart::Note, line)));
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
pub(super) fn chapter(advices: Option<&AdviceReport>, columns: usize) -> Vec<(AdvicePart, String)> {
    let Some(advices) = advices.filter(|advices| !advices.advice.is_empty()) else { return Vec::new() };
    let mut lines = advised(advices, columns);
    let tried = tried(advices, columns);
    lines.extend((!tried.is_empty()).then(|| (AdvicePart::Note, String::new())));
    lines.extend(tried);
    lines
}
