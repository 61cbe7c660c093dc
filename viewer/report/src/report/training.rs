//! Figures that a training run reports for its steps.

use std::collections::BTreeMap;
use std::sync::Arc;

use memlab_trace::{Model, TrainingView};

use super::sections::section;
use memlab_base::table::Table;
use memlab_base::text::clean;
use memlab_units::format::{self, size};

/// Maximum number of epochs shown: the last ones.
const EPOCHS: usize = 10;

/// Sum of an epoch's steps.
#[derive(Default)]
struct Epoch {
    steps: u64,
    samples: u64,
    duration: u64,
    /// Sum of the known losses, weighted by samples.
    loss: f64,
    loss_samples: u64,
    offloaded_bytes: u64,
    computed: String,
}

impl Epoch {
    fn add(&mut self, steps: u64, training: &TrainingView) {
        self.steps += steps;
        self.samples = self.samples.saturating_add(training.samples);
        self.duration = self.duration.saturating_add(training.duration);
        if let Some(loss) = training.loss {
            self.loss += loss * training.samples as f64;
            self.loss_samples = self.loss_samples.saturating_add(training.samples);
        }
        self.offloaded_bytes = self.offloaded_bytes.saturating_add(training.offloaded_bytes);
        self.computed = computed(training);
    }

    fn samples_per_second(&self) -> f64 {
        self.samples as f64 * 1e9 / self.duration as f64
    }
}

/// Progress of the training by epoch; empty without reports.
pub(super) fn epochs(model: &Model, columns: usize) -> Vec<String> {
    let mut epochs: BTreeMap<(u64, Option<Arc<str>>), Epoch> = BTreeMap::new();
    for step in model.steps() {
        if let Some(training) = model.training(step) {
            epochs.entry((training.epoch, training.phase.clone())).or_default().add(step.steps, &training);
        }
    }
    let mut table = Table::new(&["epoch", "steps", "loss", "samples", "samples/s", "offloaded", "computed"]);
    let left_out = epochs.len().saturating_sub(EPOCHS);
    for ((epoch, _), figures) in epochs.iter().skip(left_out) {
        let loss = (figures.loss_samples > 0).then(|| format::loss(figures.loss / figures.loss_samples as f64));
        table.row(vec![
            epoch.to_string(),
            format::grouped(figures.steps),
            loss.unwrap_or_else(|| "–".to_owned()),
            format::grouped(figures.samples),
            format::rate(figures.samples_per_second()),
            size(figures.offloaded_bytes),
            figures.computed.clone(),
        ]);
    }
    let rest = (left_out > 0).then(|| format!("  and {} before them", format::counted(left_out as u64, "row")));
    section("Training by epoch", &table, rest, columns)
}

/// Method of the gradient computation: `8 pieces, micro-batches`.
pub(super) fn computed(training: &TrainingView) -> String {
    let pieces = (training.pieces > 1).then(|| format!("{} pieces", format::grouped(training.pieces)));
    let texts = [training.phase.as_deref().map(clean), pieces.map(Into::into), training.way.as_deref().map(clean)];
    texts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}
