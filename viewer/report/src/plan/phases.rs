//! The phases of a plan: training, evaluation, saving.

use memlab_predict::plan::{Planned, Recording, Stage};
use serde::Serialize;

use memlab_units::format::size;

/// A phase of the program, at the batch of the peak.
#[derive(Clone, Debug, Serialize)]
pub struct PhaseRow {
    /// Name.
    pub name: &'static str,
    /// Peak of allocated bytes in the phase.
    pub peak_allocated_bytes: u64,
    /// Peak of reserved bytes in the phase, including memory that earlier phases reserved.
    pub peak_reserved_bytes: u64,
}

/// Name of a phase.
pub fn name(stage: Stage) -> &'static str {
    match stage {
        Stage::Training => "training",
        Stage::Evaluation => "evaluation",
        Stage::Saving => "saving",
        Stage::Rest => "after the epoch",
    }
}

/// Recorded phases. The rest counts as a phase if it needs more than training.
pub fn rows(planned: &Planned) -> Vec<PhaseRow> {
    let recorded = std::iter::zip(Stage::ALL, planned.stages).filter_map(|(stage, peak)| Some((stage, peak?)));
    let training = planned.stages[Stage::Training as usize].map_or(0, |peak| peak.allocated);
    recorded
        .filter(|(stage, peak)| *stage != Stage::Rest || peak.allocated > training)
        .map(|(stage, peak)| PhaseRow {
            name: name(stage),
            peak_allocated_bytes: peak.allocated,
            peak_reserved_bytes: peak.reserved,
        })
        .collect()
}

/// Advice if another phase than training needs most.
pub fn advice(rows: &[PhaseRow]) -> Option<String> {
    let (training, others) = rows.split_first()?;
    let most = others.iter().max_by_key(|row| row.peak_allocated_bytes)?;
    let more = most.peak_allocated_bytes.checked_sub(training.peak_allocated_bytes).filter(|more| *more > 0)?;
    let way = match most.name {
        "evaluation" => "use `torch.no_grad()` or a smaller batch there, or move outputs to the host",
        _ => "copy the state on the host",
    };
    Some(format!(
        "{} needs {} more than training ({}): {way}",
        most.name,
        size(more),
        size(training.peak_allocated_bytes)
    ))
}

/// Warning if evaluation or saving failed in the recording.
pub fn warning(recording: &Recording) -> Option<String> {
    recording.stages.has_failed.then(|| {
        "the program failed after the training steps, with an epoch cut short: the plan covers the training only"
            .to_owned()
    })
}
