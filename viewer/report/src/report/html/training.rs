//! What a training says of its steps, beside what is known of their memory.

use memlab_trace::TrainingView;

use super::super::training::computed;
use crate::page::table::{Column, bytes, text};
use memlab_units::format;

/// The columns.
pub(super) const HEAD: [(&str, Column); 4] = [
    ("loss", Column::Number),
    ("samples a second", Column::Number),
    ("offloaded", Column::Number),
    ("computed", Column::Name),
];

/// The cells of a step.
pub(super) fn cells(training: Option<TrainingView>) -> [String; 4] {
    let Some(training) = training else { return [float(None, ""), float(None, ""), float(None, ""), text("")] };
    let speed = training.samples_per_second();
    [
        float(training.loss, &training.loss.map(format::loss).unwrap_or_default()),
        float(speed, &speed.map(format::rate).unwrap_or_default()),
        bytes(training.offloaded_bytes, None),
        text(&computed(&training)),
    ]
}

/// A number that need not be whole.
fn float(number: Option<f64>, shown: &str) -> String {
    let value = number.filter(|number| number.is_finite()).unwrap_or(0.0);
    format!("<td class=\"num\" data-v=\"{value}\">{shown}</td>")
}
