//! A sequence of lengths, as text.

use std::io::{self, Write};

use super::sequence::{SequenceAnswer, SequenceRow};
use memlab_base::table::Table;
use memlab_units::format::{self, size};

/// Writes the forecast for a terminal of `columns`.
///
/// # Errors
///
/// If it cannot be written.
pub fn write(out: &mut impl Write, answer: &SequenceAnswer, columns: usize) -> io::Result<()> {
    let number = format::grouped;
    let Some(today) = answer.rows.iter().find(|row| row.is_current) else { return Ok(()) };
    let recorded: Vec<String> = answer.recorded_lengths.iter().copied().map(number).collect();
    writeln!(
        out,
        "{} of length {} to {}{}, from recordings at {}",
        format::counted(answer.steps as u64, "step"),
        number(answer.shortest),
        number(answer.longest),
        answer.batch.map_or(String::new(), |batch| format!(", batch {}", number(batch))),
        recorded.join(", "),
    )?;
    match today.failed_in_step {
        None => writeln!(out, "As given, all steps fit.\n")?,
        Some(step) => writeln!(out, "As given, step {} runs out of memory.\n", number(step as u64))?,
    }
    let mut table =
        Table::new(&["allocated", "reserved", "smallest card", "retries", "fits", "longest", "padding", "order"]);
    for row in answer.rows.iter().filter(|row| row.settings == today.settings) {
        table.row(vec![
            size(row.peak_allocated_bytes),
            size(row.peak_reserved_bytes),
            size(row.needed_bytes),
            number(row.retries),
            if row.fits { "yes" } else { "no" }.to_owned(),
            number(row.longest),
            format::percent(row.total_length - today.total_length, today.total_length),
            row.order.clone(),
        ]);
    }
    print(out, &table, columns)?;

    writeln!(out, "\nReserved with other allocator settings (PYTORCH_ALLOC_CONF), replayed:")?;
    print(out, &by_settings(&answer.rows, today), columns)?;
    if answer.replayed_steps < answer.steps {
        let (some, all) = (number(answer.replayed_steps as u64), number(answer.steps as u64));
        writeln!(out, "\nReplayed: {some} of the {all} steps, evenly spaced, and the longest.")?;
    }
    let mut advice = answer.advice.chars();
    let first = advice.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    writeln!(out, "\n{first}{}.", advice.as_str())
}

/// Table with one row per setting, and orders side by side.
fn by_settings(rows: &[SequenceRow], today: &SequenceRow) -> Table {
    const HEAD: [&str; 8] =
        ["as given", "shuffled", "longest first", "ascending", "padded to 64", "to 128", "to 256", "settings"];
    let mut table = Table::new(&HEAD);
    let of_order = rows.iter().filter(|row| row.order == today.order);
    for first in of_order {
        let with = rows.iter().filter(|row| row.settings == first.settings);
        let mut cells: Vec<String> = with.map(|row| size(row.peak_reserved_bytes)).collect();
        let settings = if first.settings.is_empty() { "PyTorch's default" } else { &first.settings };
        cells.push(format!("{settings}{}", if first.is_current { "  (current)" } else { "" }));
        table.row(cells);
    }
    table
}

fn print(out: &mut impl Write, table: &Table, columns: usize) -> io::Result<()> {
    table.lines(columns).iter().try_for_each(|line| writeln!(out, "{line}"))
}
