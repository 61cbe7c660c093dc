//! Answers of a plan, as plain values. Their JSON is the output of `memlab plan --json`.

use std::sync::Arc;

use memlab_predict::allocator::Settings;
use memlab_predict::plan::{
    EXTRAPOLATION_LIMIT, Family, Needs, PeakView, Program, SETTINGS_TO_TRY, Search, Stage, Steadiness,
};
use memlab_trace::{BlockLayer, Line};
use serde::Serialize;

use crate::plan::holders::{self, HoldingRow};
use crate::plan::phases::{self, PhaseRow};
use crate::plan::ranks;
use crate::plan::sequence::SequenceAnswer;
use crate::report::names;
use memlab_base::category::category_names;
use memlab_base::text;
use memlab_units::format::{self, size};

/// Other settings are recommended if they allow a larger batch, or save a hundredth of the card.
const MIN_SAVING_DIVISOR: u64 = 100;

/// Maximum number of named lines that read values back.
const SHOWN_READ_BACKS: usize = 5;

/// The card of the plan.
#[derive(Clone, Debug, Serialize)]
pub struct PlannedCard {
    /// Name.
    pub name: String,
    /// Memory, as programs see it.
    pub bytes: u64,
    /// Context of a process, beyond its allocations: kernels, stacks.
    pub context_bytes: u64,
    /// True if the context was measured on such a card, false if it is estimated.
    pub context_is_measured: bool,
}

/// Input of a plan.
pub struct Question<'f> {
    /// The program at any batch.
    pub program: &'f Program,
    /// Card.
    pub card: PlannedCard,
    /// Current settings of the allocator.
    pub settings: String,
    /// Batch sizes to show; empty: an automatic choice.
    pub batches: Vec<u64>,
}

/// Forecast for a batch size.
#[derive(Clone, Debug, Serialize)]
pub struct BatchRow {
    /// Batch size; `None`: the program unchanged.
    pub batch: Option<u64>,
    /// `torch.cuda.max_memory_allocated()`.
    pub peak_allocated_bytes: u64,
    /// `torch.cuda.max_memory_reserved()` on a card that is never full.
    pub peak_reserved_bytes: u64,
    /// Lower and upper bound of it: up to PyTorch 2.12 it depends on addresses that the driver chooses.
    pub peak_reserved_range_bytes: [u64; 2],
    /// Smallest memory of a card on which it runs, including context and libraries.
    pub needed_bytes: u64,
    /// True if the card has that much.
    pub fits: bool,
}

/// Forecast for settings of the allocator.
#[derive(Clone, Debug, Serialize)]
pub struct SettingsRow {
    /// Value of `PYTORCH_ALLOC_CONF`; empty: PyTorch's default.
    pub settings: String,
    /// True for the current settings.
    pub is_current: bool,
    /// As [`BatchRow::needed_bytes`], at the batch of the peak.
    pub needed_bytes: u64,
    /// Largest batch that fits with them.
    pub largest_batch: Option<u64>,
}

/// The moment of most allocated memory.
#[derive(Clone, Debug, Serialize)]
pub struct PeakRow {
    /// Batch size.
    pub batch: Option<u64>,
    /// Bytes allocated.
    pub allocated_bytes: u64,
    /// Optimizer step, counted from 0.
    pub step: usize,
    /// Phase: forward, backward, optimizer, evaluation, saving.
    pub phase: &'static str,
    /// Line that requested the last block.
    pub line: String,
    /// Layer that requested the last block.
    pub layer: String,
}

/// A plan.
#[derive(Clone, Debug, Serialize)]
pub struct Answer {
    /// Rank of the program, from 0.
    pub rank: u32,
    /// Number of ranks.
    pub ranks: u32,
    /// Memory of the card.
    pub card_bytes: u64,
    /// Card.
    pub card: PlannedCard,
    /// Bytes that libraries allocated directly from the driver in the recording.
    pub library_bytes: u64,
    /// Recorded batch sizes.
    pub recorded_batches: Vec<u64>,
    /// Largest batch that fits with the current settings; 0: none; `None`: the batch cannot be chosen.
    pub largest_batch: Option<u64>,
    /// Batch sizes.
    pub batches: Vec<BatchRow>,
    /// Training, and the recorded parts of evaluation and saving, at the batch of the peak.
    pub phases: Vec<PhaseRow>,
    /// Peak at the largest batch, or at the smallest if none fits.
    pub peak: PeakRow,
    /// Memory at the peak by category.
    pub categories: Vec<HoldingRow>,
    /// Memory at the peak by line.
    pub lines: Vec<HoldingRow>,
    /// Memory at the peak by layer.
    pub layers: Vec<HoldingRow>,
    /// The same, with layers that differ only in their number in one row.
    #[serde(skip)]
    pub layer_groups: Vec<HoldingRow>,
    /// Effects of other allocator settings.
    pub settings: Vec<SettingsRow>,
    /// Steps of different lengths.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequence: Option<SequenceAnswer>,
    /// Recommended actions.
    pub advice: Vec<String>,
    /// Limits of the forecast.
    pub warnings: Vec<String>,
}

/// Search on a card with these settings of the allocator.
///
/// # Errors
///
/// If the settings are not valid.
pub fn search_on<'p>(program: &'p Program, card: &PlannedCard, settings: &str) -> anyhow::Result<Search<'p>> {
    Ok(Search::of_program(program, Settings::parse(settings)?, card.context_bytes))
}

impl Answer {
    /// Answers a question.
    ///
    /// # Errors
    ///
    /// If the settings are not valid.
    pub fn to(question: &Question) -> anyhow::Result<Answer> {
        let Question { program, card, settings, .. } = question;
        let today = search_on(program, card, settings)?;
        let takes_batch = program.last().recorded_batches().is_some();
        let largest = takes_batch.then(|| today.largest_batch(card.bytes));
        let batches = rows(question, &today, largest);
        let shown = largest.map(|largest| if largest > 0 { largest } else { program.recorded_batches()[0] });

        let (family, in_family) = program.at(shown);
        let needs = today.needs(shown);
        let peak = family.peak(&needs.planned, &family.sizes(in_family), today.settings());
        let tried = tried(question, &needs, shown, largest)?;
        let names = HolderNames::of(family);
        let phases = phases::rows(&needs.planned);
        let (rank, ranks) = ranks::rank_of(&family.recording);
        Ok(Answer {
            rank,
            ranks,
            card_bytes: card.bytes,
            card: card.clone(),
            library_bytes: family.recording.outside,
            recorded_batches: program.recorded_batches(),
            largest_batch: largest,
            advice: phases::advice(&phases)
                .into_iter()
                .chain(advice(largest, &tried, card.bytes, &needs, &peak))
                .collect(),
            warnings: warnings(question, family, &needs, shown)
                .into_iter()
                .chain(uneven(program, family, &batches))
                .chain(placement(&batches))
                .collect(),
            batches,
            phases,
            peak: names.peak(shown, &peak),
            categories: holders::rows(&peak.categories, |category| category_names(*category).0.to_owned()),
            lines: holders::rows(&peak.lines, |line| names.line(line.as_ref())),
            layers: holders::rows(&peak.layers, |layer| names.layer(layer)),
            layer_groups: holders::grouped_layers(&family.recording, &peak.layers),
            settings: tried,
            sequence: None,
        })
    }
}

/// Forecast for a batch size, as a row.
pub(super) fn row(card: &PlannedCard, search: &Search, batch: Option<u64>) -> BatchRow {
    let needs = search.needs(batch);
    let range = search.reserved_range(batch, &needs.planned);
    BatchRow {
        batch,
        peak_allocated_bytes: needs.planned.counters.allocated.peak,
        peak_reserved_bytes: needs.planned.counters.reserved.peak,
        peak_reserved_range_bytes: [*range.start(), *range.end()],
        needed_bytes: needs.least,
        fits: needs.least <= card.bytes,
    }
}

fn rows(question: &Question, search: &Search, largest: Option<u64>) -> Vec<BatchRow> {
    let row = |batch: Option<u64>| row(&question.card, search, batch);
    let recorded = question.program.recorded_batches();
    let Some(low) = recorded.first().copied() else { return vec![row(None)] };
    let batches = match &question.batches[..] {
        [] => choice(low, largest.unwrap_or(low)),
        batches => batches.to_vec(),
    };
    batches.into_iter().map(|batch| row(Some(batch))).collect()
}

/// Powers of two up to the first that does not fit, and the largest that fits.
pub fn choice(low: u64, largest: u64) -> Vec<u64> {
    let mut batches: Vec<u64> = std::iter::successors(Some(low.next_power_of_two()), |batch| Some(batch * 2))
        .take_while(|batch| *batch <= largest.saturating_mul(2).max(low * 4))
        .collect();
    const MAX_BATCHES: usize = 6;
    let spare = batches.len().saturating_sub(MAX_BATCHES);
    batches.drain(..spare);
    if largest > 0 && !batches.contains(&largest) {
        batches.push(largest);
        batches.sort_unstable();
    }
    batches
}

fn tried(
    question: &Question,
    today: &Needs,
    shown: Option<u64>,
    largest: Option<u64>,
) -> anyhow::Result<Vec<SettingsRow>> {
    let Question { program, card, settings, .. } = question;
    let mut rows = vec![SettingsRow {
        settings: settings.clone(),
        is_current: true,
        needed_bytes: today.least,
        largest_batch: largest,
    }];
    for other in SETTINGS_TO_TRY.into_iter().filter(|other| other != settings) {
        let search = search_on(program, card, other)?;
        rows.push(SettingsRow {
            settings: other.to_owned(),
            is_current: false,
            needed_bytes: search.needs(shown).least,
            largest_batch: largest.map(|_| search.largest_batch(card.bytes)),
        });
    }
    Ok(rows)
}

fn advice(largest: Option<u64>, tried: &[SettingsRow], card_bytes: u64, needs: &Needs, peak: &PeakView) -> Vec<String> {
    let mut advice = Vec::new();
    let Some(today) = tried.first() else { return advice };
    let better = tried[1..].iter().filter(|row| {
        row.largest_batch > today.largest_batch
            || row.needed_bytes + card_bytes / MIN_SAVING_DIVISOR < today.needed_bytes
    });
    // Of equally good settings, the first, which is the most widely used.
    let best = better.min_by_key(|row| (std::cmp::Reverse(row.largest_batch), row.needed_bytes));
    if let Some(best) = best {
        let gain = match (best.largest_batch, today.largest_batch) {
            (Some(then), Some(now)) if then > now => format!("the largest batch becomes {then} instead of {now}"),
            _ => format!("the same run needs {} less", size(today.needed_bytes.saturating_sub(best.needed_bytes))),
        };
        let setting = if best.settings.is_empty() { "unset PYTORCH_ALLOC_CONF" } else { "set PYTORCH_ALLOC_CONF=" };
        advice.push(format!("{setting}{}: {gain} (replayed)", best.settings));
    }
    let does_not_fit = largest == Some(0) || (largest.is_none() && today.needed_bytes > card_bytes);
    if does_not_fit {
        let missing = today.needed_bytes.saturating_sub(card_bytes);
        let largest_category = peak.categories.first().map(|(category, holding)| {
            format!("; {} hold {} at the peak", category_names(*category).0, size(holding.bytes))
        });
        advice.push(format!("it does not fit: {} too much{}", size(missing), largest_category.unwrap_or_default()));
    }
    if needs.planned.counters.reserved.peak > needs.least {
        let without = needs.planned.counters.reserved.peak;
        advice.push(format!(
            "with less than {} for the allocator, it runs, but stops the GPU at times to release unused memory",
            size(without)
        ));
    }
    advice
}

fn warnings(question: &Question, family: &Family, needs: &Needs, shown: Option<u64>) -> Vec<String> {
    let card = &question.card;
    let mut warnings = Vec::new();
    if !family.recording.has_requested_sizes {
        warnings.push(
            "the trace has block sizes only, not requested sizes: other batches are up to 4 % off. `memlab plan -- CMD` \
             records requests"
                .to_owned(),
        );
    }
    if family.unmatched > 0 {
        warnings.push(format!(
            "{} of {} requests at the larger batch have no counterpart at the smaller one (at most {} at once): they count \
             the same at every batch",
            family.unmatched,
            family.recording.allocations.len(),
            size(family.unmatched_bytes)
        ));
    }
    match needs.planned.steadiness {
        Steadiness::After(_) => {}
        Steadiness::Grows(bytes) => {
            warnings.push(format!("each step keeps {} more: a long run fits on no card", size(bytes)));
        }
        Steadiness::NotYet => {
            warnings.push("the allocator had not settled: a long run may reserve more".to_owned());
        }
        Steadiness::Unknown => warnings.push(
            "the recorded steps differ, or are too few: the figures hold for these steps only. Record more with --steps"
                .to_owned(),
        ),
    }
    if let Some(shown) = shown.filter(|shown| question.program.is_far(*shown)) {
        warnings.push(format!(
            "batch {shown} is more than {EXTRAPOLATION_LIMIT} times the largest recorded one: kernels may choose other \
             algorithms; --check records it too"
        ));
    }
    if !card.context_is_measured {
        warnings.push(format!(
            "the context of this card, {}, is an estimate, to a few hundred MiB",
            size(card.context_bytes)
        ));
    }
    warnings.extend(phases::warning(&family.recording));
    warnings.extend(ranks::warning(&family.recording));
    warnings.extend(read_backs(family));
    warnings.extend(family.recording.model.warnings().iter().cloned());
    warnings
}

/// Warning about unrecorded batch sizes, if memory does not grow evenly with the batch.
fn uneven(program: &Program, family: &Family, rows: &[BatchRow]) -> Option<String> {
    let recorded = program.recorded_batches();
    let shown = rows.iter().filter_map(|row| row.batch);
    let foretold: Vec<String> =
        shown.filter(|batch| !recorded.contains(batch)).map(|batch| batch.to_string()).collect();
    let which = match &foretold[..] {
        [] => "the batches shown were recorded; others".to_owned(),
        [batch] => format!("batch {batch} was not recorded and"),
        batches => format!("batches {} were not recorded and", batches.join(", ")),
    };
    let why = if has_convolutions(family) { ", probably because cuDNN chooses kernels by size" } else { "" };
    program.is_uneven().then(|| {
        format!("memory does not grow evenly with the batch{why}: {which} may need a few percent more or less")
    })
}

fn has_convolutions(family: &Family) -> bool {
    let layers = family.recording.model.layers(family.recording.device);
    layers.iter().filter_map(|layer| layer.class.as_deref()).any(|class| class.contains("Conv"))
}

/// Warning about figures that depend on addresses, if any.
fn placement(rows: &[BatchRow]) -> Option<String> {
    let open = rows.iter().filter(|row| row.peak_reserved_range_bytes[0] < row.peak_reserved_range_bytes[1]);
    let open: Vec<String> = open
        .map(|row| {
            let [least, most] = row.peak_reserved_range_bytes.map(size);
            let batch = row.batch.map_or(String::new(), |batch| format!(" at batch {batch}"));
            format!("{least} to {most}{batch}")
        })
        .collect();
    (!open.is_empty()).then(|| {
        format!(
            "up to version 2.12, PyTorch chooses among free blocks of equal size by address, and the driver sets \
             addresses: reserved memory may be {}",
            open.join(", ")
        )
    })
}

/// Warning about lines that read values back, if any.
fn read_backs(family: &Family) -> Option<String> {
    let names = HolderNames::of(family);
    let all = &family.recording.read_backs;
    let shown = all.iter().take(SHOWN_READ_BACKS);
    let shown: Vec<String> =
        shown.map(|read| format!("{} ({} times)", names.line(read.line.as_ref()), read.count)).collect();
    let more = all.len().saturating_sub(SHOWN_READ_BACKS);
    let more = if more > 0 { format!(" and {} more", format::counted(more as u64, "line")) } else { String::new() };
    (!all.is_empty()).then(|| {
        format!(
            "values read back from the GPU are 0 on a simulated card. If sizes depend on one of these, the forecast is too \
             small; use --on gpu: {}{more}",
            shown.join(", ")
        )
    })
}

/// Names of lines and layers in the recording.
struct HolderNames<'f> {
    names: names::ReportNames<'f>,
}

impl<'f> HolderNames<'f> {
    fn of(family: &'f Family) -> Self {
        Self { names: names::ReportNames::new(&family.recording.model) }
    }

    fn line(&self, line: Option<&Arc<Line>>) -> String {
        self.names.line(line)
    }

    fn layer(&self, layer: &BlockLayer) -> String {
        match layer.name.as_deref() {
            None => text::NO_LAYER.to_owned(),
            Some("") => "(outermost module)".to_owned(),
            Some(name) => text::clean(name).into_owned(),
        }
    }

    fn peak(&self, batch: Option<u64>, peak: &PeakView) -> PeakRow {
        PeakRow {
            batch,
            allocated_bytes: peak.allocated,
            step: peak.step,
            phase: match peak.stage {
                Stage::Training => peak.phase.as_str(),
                stage => phases::name(stage),
            },
            line: self.line(peak.line.as_ref()),
            layer: self.layer(&peak.layer),
        }
    }
}
