//! A plan as text.

use std::io::{self, Write};

use super::answer::Answer;
use super::holders::HoldingRow;
use memlab_base::table::Table;
use memlab_base::text;
use memlab_units::format::{self, size};

/// Maximum number of lines and of layers shown.
const SHOWN_ROWS: usize = 8;

/// Writes a plan for a terminal of `columns`.
///
/// # Errors
///
/// If it cannot be written.
pub fn write(out: &mut impl Write, answer: &Answer, columns: usize) -> io::Result<()> {
    let card = &answer.card;
    let outside = card.context_bytes + answer.library_bytes;
    writeln!(
        out,
        "{}: {}, of which {} are left for PyTorch (context {}{}, libraries {})",
        card.name,
        size(card.bytes),
        size(card.bytes.saturating_sub(outside)),
        if card.context_is_measured { "" } else { "about " },
        size(card.context_bytes),
        size(answer.library_bytes),
    )?;
    if answer.ranks > 1 {
        writeln!(out, "Each of {} ranks has such a card. This is rank {}.", answer.ranks, answer.rank)?;
    }
    match (answer.largest_batch, answer.batches.first()) {
        (Some(0), _) => writeln!(out, "No batch fits.")?,
        (Some(largest), _) => writeln!(out, "The largest batch that fits is {largest}.")?,
        (None, Some(row)) if row.fits => writeln!(out, "It fits.")?,
        (None, _) => writeln!(out, "It does not fit.")?,
    }
    writeln!(out)?;

    let mut table = Table::new(&["batch", "allocated", "reserved", "smallest card", "fits"]);
    for row in &answer.batches {
        table.row(vec![
            row.batch.map_or("as it is".to_owned(), format::grouped),
            size(row.peak_allocated_bytes),
            size(row.peak_reserved_bytes),
            size(row.needed_bytes),
            if row.fits { "yes" } else { "no" }.to_owned(),
        ]);
    }
    print(out, &table, columns)?;

    if answer.phases.len() > 1 {
        writeln!(out)?;
        let mut table = Table::new(&["allocated", "reserved", "phase"]);
        for row in &answer.phases {
            table.row(vec![size(row.peak_allocated_bytes), size(row.peak_reserved_bytes), row.name.to_owned()]);
        }
        print(out, &table, columns)?;
    }

    let peak = &answer.peak;
    let batch = peak.batch.map_or(String::new(), |batch| format!(" at batch {batch}"));
    writeln!(out, "\nThe peak{batch}: {} in step {}, in {}", size(peak.allocated_bytes), peak.step, peak.phase)?;
    let layer = format!(", layer {}", peak.layer);
    let room = columns.saturating_sub("  requested by ".len() + text::width(&layer));
    writeln!(out, "  requested by {}{layer}", text::fit_end(&peak.line, room, "…"))?;
    for (head, rows) in [("category", &answer.categories), ("line", &answer.lines), ("layer", &answer.layer_groups)] {
        writeln!(out)?;
        print(out, &held(head, rows, peak.allocated_bytes), columns)?;
    }

    writeln!(out, "\nWith other allocator settings (PYTORCH_ALLOC_CONF), replayed:")?;
    let mut table = Table::new(&["smallest card", "largest batch", "settings"]);
    for row in &answer.settings {
        let settings = if row.settings.is_empty() { "PyTorch's default" } else { &row.settings };
        table.row(vec![
            size(row.needed_bytes),
            row.largest_batch.map_or("–".to_owned(), format::grouped),
            format!("{settings}{}", if row.is_current { "  (current)" } else { "" }),
        ]);
    }
    print(out, &table, columns)?;
    for (head, texts) in [("What to do:", &answer.advice), ("Note:", &answer.warnings)] {
        if !texts.is_empty() {
            writeln!(out, "\n{head}")?;
        }
        for text in texts {
            writeln!(out, "  - {text}")?;
        }
    }
    Ok(())
}

fn held(head: &'static str, rows: &[HoldingRow], all: u64) -> Table {
    let mut table = Table::new(&["at the peak", "of allocated", head]);
    for HoldingRow { name, bytes, .. } in rows.iter().take(SHOWN_ROWS) {
        table.row(vec![size(*bytes), format::percent(*bytes, all), name.clone()]);
    }
    let rest: u64 = rows.iter().skip(SHOWN_ROWS).map(|row| row.bytes).sum();
    if rest > 0 {
        let name = format!("{} more", rows.len() - SHOWN_ROWS);
        table.row(vec![size(rest), format::percent(rest, all), name]);
    }
    table
}

fn print(out: &mut impl Write, table: &Table, columns: usize) -> io::Result<()> {
    table.lines(columns).iter().try_for_each(|line| writeln!(out, "{line}"))
}
