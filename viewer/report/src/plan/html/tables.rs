//! Tables of a plan.

use maud::{Markup, html};

use crate::page::elements::{name, plural, size};
use crate::page::table::{Column, Kind, bytes, capped, count, number, percent, table, text};
use crate::plan::answer::{Answer, BatchRow, SettingsRow};
use crate::plan::holders::HoldingRow;
use crate::plan::phases::PhaseRow;
use crate::plan::sequence::{SequenceAnswer, SequenceRow};
use memlab_base::text::clean;
use memlab_units::format;

/// Maximum number of rows for lines and for layers.
const MAX_ROWS: usize = 400;

/// ` at batch 8`, or empty without a batch.
pub(super) fn at_batch(answer: &Answer) -> String {
    answer.peak.batch.map_or(String::new(), |batch| format!(" at batch {}", format::grouped(batch)))
}

/// Batch sizes.
pub(super) fn batches(answer: &Answer) -> Markup {
    let batch = |row: &BatchRow| row.batch.map_or("as it is".to_owned(), format::grouped);
    let columns: [Column<'_, BatchRow>; 5] = [
        ("batch", Kind::Number, &|row| number(row.batch.unwrap_or(0), &batch(row))),
        ("allocated", Kind::Number, &|row| bytes(row.peak_allocated_bytes, None)),
        ("reserved", Kind::Number, &|row| bytes(row.peak_reserved_bytes, None)),
        ("smallest card", Kind::Number, &|row| bytes(row.needed_bytes, None)),
        ("fits", Kind::Note, &|row| text(if row.fits { "yes" } else { "no" })),
    ];
    table("batches", &answer.batches, &columns)
}

/// Settings of the allocator.
pub(super) fn settings(answer: &Answer) -> Markup {
    let largest = |row: &SettingsRow| row.largest_batch.map_or("–".to_owned(), format::grouped);
    let columns: [Column<'_, SettingsRow>; 3] = [
        ("smallest card", Kind::Number, &|row| bytes(row.needed_bytes, None)),
        ("largest batch", Kind::Number, &|row| number(row.largest_batch.unwrap_or(0), &largest(row))),
        ("settings", Kind::Name, &|row| text(&settings_title(&row.settings, row.is_current))),
    ];
    html! {
        p.note { code { "PYTORCH_ALLOC_CONF" } ", each replayed" (at_batch(answer)) "." }
        (table("settings", &answer.settings, &columns))
    }
}

/// Settings in words.
fn settings_title(settings: &str, is_current: bool) -> String {
    let what = if settings.is_empty() { "PyTorch’s default" } else { settings };
    format!("{what}{}", if is_current { "  (current)" } else { "" })
}

/// Phases, if there are several.
pub(super) fn phases(answer: &Answer) -> Markup {
    let columns: [Column<'_, PhaseRow>; 3] = [
        ("allocated", Kind::Number, &|row| bytes(row.peak_allocated_bytes, None)),
        ("reserved", Kind::Number, &|row| bytes(row.peak_reserved_bytes, None)),
        ("phase", Kind::Name, &|row| text(row.name)),
    ];
    html! {
        @if answer.phases.len() > 1 { h3 { "Phases" } (table("phases", &answer.phases, &columns)) }
    }
}

/// Orders of lengths, under settings of the allocator.
pub(super) fn sequence(sequence: &SequenceAnswer) -> Markup {
    let columns: [Column<'_, SequenceRow>; 7] = [
        ("allocated", Kind::Number, &|row| bytes(row.peak_allocated_bytes, None)),
        ("reserved", Kind::Number, &|row| bytes(row.peak_reserved_bytes, None)),
        ("smallest card", Kind::Number, &|row| bytes(row.needed_bytes, None)),
        ("retries", Kind::Number, &|row| count(row.retries)),
        ("fits", Kind::Note, &|row| text(if row.fits { "yes" } else { "no" })),
        ("order", Kind::Note, &|row| text(&row.order)),
        ("settings", Kind::Name, &|row| text(&settings_title(&row.settings, row.is_current))),
    ];
    html! {
        p {
            (plural(sequence.steps as u64, "step")) " of lengths from " (format::grouped(sequence.shortest)) " to "
            (format::grouped(sequence.longest)) ". " (clean(&sequence.advice))
        }
        (table("sequence", &sequence.rows, &columns))
    }
}

/// Holders of memory at the peak.
pub(super) fn held(answer: &Answer) -> Markup {
    let peak = &answer.peak;
    let parts = [("categories", &answer.categories), ("lines", &answer.lines), ("layers", &answer.layer_groups)];
    html! {
        p {
            "At the peak, in step " (format::grouped(peak.step as u64)) " in " (peak.phase) ", "
            (size(peak.allocated_bytes)) " were allocated. The last block was requested by "
            code { (name(&peak.line)) } ", layer " code { (name(&peak.layer)) } "."
        }
        @for (what, rows) in parts { h3 { "The peak by " (what) } (held_by(what, rows, peak.allocated_bytes)) }
    }
}

fn held_by(what: &str, rows: &[HoldingRow], whole: u64) -> Markup {
    let most = rows.first().map(|row| row.bytes);
    let columns: [Column<'_, HoldingRow>; 4] = [
        ("held", Kind::Sorted, &|row| bytes(row.bytes, most)),
        ("of allocated", Kind::Percent, &|row| percent(row.bytes, whole)),
        ("blocks", Kind::Number, &|row| count(row.blocks)),
        (what, Kind::Name, &|row| text(&row.name)),
    ];
    capped(what, rows, MAX_ROWS, |row| row.bytes, &columns)
}
