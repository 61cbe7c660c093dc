//! The tables of a plan.

use std::fmt::Write as _;

use crate::page::elements::{name, plural, size};
use crate::page::table::{Column, Table, bytes, number, rest, text};
use crate::plan::answer::{Answer, HoldingRow};
use crate::plan::sequence::SequenceAnswer;
use memlab_base::text::markup;
use memlab_units::format;

/// The most rows of lines and of layers.
const ROWS: usize = 400;

/// Batch sizes.
pub(super) fn batches(answer: &Answer) -> String {
    let head = ["batch", "allocated", "reserved", "smallest card"].map(|title| (title, Column::Number));
    let mut table = Table::new("batches", &[&head[..], &[("fits", Column::Name)]].concat());
    for row in &answer.batches {
        table.row(&[
            number(row.batch.unwrap_or(0), &row.batch.map_or("as it is".to_owned(), format::grouped)),
            bytes(row.peak_allocated_bytes, None),
            bytes(row.peak_reserved_bytes, None),
            bytes(row.needed_bytes, None),
            text(if row.fits { "yes" } else { "no" }),
        ]);
    }
    table.finish(None)
}

/// Settings of the allocator.
pub(super) fn settings(answer: &Answer) -> String {
    let head = [("smallest card", Column::Number), ("largest batch", Column::Number), ("settings", Column::Name)];
    let mut table = Table::new("settings", &head);
    for row in &answer.settings {
        let what = if row.settings.is_empty() { "PyTorch’s default" } else { &row.settings };
        let today = if row.is_current { "  (today’s)" } else { "" };
        table.row(&[
            bytes(row.needed_bytes, None),
            number(row.largest_batch.unwrap_or(0), &row.largest_batch.map_or("–".to_owned(), format::grouped)),
            text(&format!("{what}{today}")),
        ]);
    }
    let at = answer.peak.batch.map_or(String::new(), |batch| format!(" at batch {}", format::grouped(batch)));
    format!("<p class=\"note\"><code>PYTORCH_ALLOC_CONF</code>, each replayed{at}.</p>\n{}", table.finish(None))
}

/// The phases, if there are several.
pub(super) fn phases(answer: &Answer) -> String {
    if answer.phases.len() < 2 {
        return String::new();
    }
    let head = [("allocated", Column::Number), ("reserved", Column::Number), ("phase", Column::Name)];
    let mut table = Table::new("phases", &head);
    for row in &answer.phases {
        table.row(&[bytes(row.peak_allocated_bytes, None), bytes(row.peak_reserved_bytes, None), text(row.name)]);
    }
    format!("<h3>Phases</h3>\n{}", table.finish(None))
}

/// Orders of lengths, under settings of the allocator.
pub(super) fn sequence(sequence: &SequenceAnswer) -> String {
    let head = ["allocated", "reserved", "smallest card", "retries"].map(|title| (title, Column::Number));
    let words = ["fits", "order", "settings"].map(|title| (title, Column::Name));
    let mut table = Table::new("sequence", &[&head[..], &words].concat());
    for row in &sequence.rows {
        let what = if row.settings.is_empty() { "PyTorch’s default" } else { &row.settings };
        let today = if row.is_current { "  (today’s)" } else { "" };
        table.row(&[
            bytes(row.peak_allocated_bytes, None),
            bytes(row.peak_reserved_bytes, None),
            bytes(row.needed_bytes, None),
            number(row.retries, &format::grouped(row.retries)),
            text(if row.fits { "yes" } else { "no" }),
            text(&row.order),
            text(&format!("{what}{today}")),
        ]);
    }
    let told = format!(
        "{} of lengths from {} to {}. {}",
        plural(sequence.steps as u64, "step"),
        format::grouped(sequence.shortest),
        format::grouped(sequence.longest),
        sequence.advice
    );
    format!("<p>{}</p>\n{}", markup(&told), table.finish(None))
}

/// What holds memory at the peak.
pub(super) fn held(answer: &Answer) -> String {
    let peak = &answer.peak;
    let mut html = format!(
        "<p>At the peak, in step {} in {}, {} were allocated. The last block was asked for by <code>{}</code>, layer \
         <code>{}</code>.</p>\n",
        format::grouped(peak.step as u64),
        peak.phase,
        size(peak.allocated_bytes),
        name(&peak.line),
        name(&peak.layer)
    );
    let parts = [("categories", &answer.categories), ("lines", &answer.lines), ("layers", &answer.layers)];
    for (what, rows) in parts {
        let head = [
            ("held", Column::Sorted),
            ("% of allocated", Column::Number),
            ("blocks", Column::Number),
            (what, Column::Name),
        ];
        let mut table = Table::new(what, &head);
        let most = rows.first().map_or(0, |row| row.bytes);
        for HoldingRow { name, bytes: held, blocks } in rows.iter().take(ROWS) {
            table.row(&[
                bytes(*held, Some(most)),
                number(*held, &format::percent(*held, peak.allocated_bytes)),
                number(*blocks, &format::grouped(*blocks)),
                text(name),
            ]);
        }
        let left_out: Vec<u64> = rows.iter().skip(ROWS).map(|row| row.bytes).collect();
        let _ = write!(html, "<h3>The peak by {what}</h3>\n{}", table.finish(rest(&left_out)));
    }
    html
}
