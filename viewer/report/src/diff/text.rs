//! The difference as text, greatest change first.

use std::io::{self, Write};

use memlab_trace::{Category, Scope};

use super::change::Change;
use super::difference::Difference;
use super::holders::HolderChanges;
use super::layers::{self, LayerChange};
use super::lines::{LineChange, Match};
use super::side::Side;
use super::times::TimeDifference;
use memlab_base::category::category_names;
use memlab_base::moment::NamedMoment;
use memlab_base::ranges::range_name;
use memlab_base::table::Table;
use memlab_base::text::{Color, Style, clean, fit_end, short_command, wrapped};
use memlab_units::format::{self, size};

/// Maximum number of rows in a table.
const MAX_ROWS: usize = 12;

/// Writes the difference. In colour, more is red and less is green.
///
/// No character in it controls the terminal, except the colours.
///
/// # Errors
///
/// Errors of `out`.
pub fn write_text(out: &mut impl Write, difference: &Difference, style: Style) -> io::Result<()> {
    let Difference { before, after, .. } = difference;
    writeln!(out, "memlab diff")?;
    for (name, side) in [("before", before), ("after", after)] {
        for (index, line) in side_lines(side).iter().enumerate() {
            let name = if index == 0 { name } else { "" };
            writeln!(out, "  {name:<6}  {}", fit_end(line, style.columns.saturating_sub(10), "…"))?;
        }
    }
    let in_words = |name: &str| (if name == "used" { "in use" } else { name }).to_owned();
    let totals = difference.totals.iter().map(|(name, change)| (*change, in_words(name))).collect();
    table(out, "Device memory", totals, "", Figure::Bytes, style)?;
    let name = |category: Category| match category {
        Category::Context if !before.device.process_is_known || !after.device.process_is_known => "context, others",
        category => category_names(category).0,
    };
    let categories = difference.categories.iter().map(|(category, change)| (*change, name(*category).to_owned()));
    table(out, "By category", categories.collect(), "category", Figure::Bytes, style)?;
    let shown = difference.shown_lines();
    let lines = shown.iter().map(|line| (line.change, line_name(line, before, after))).collect();
    let title = if difference.scope == Scope::Users { "By line" } else { "By line, with libraries" };
    table(out, title, lines, "line", Figure::Bytes, style)?;
    let moved = shown.iter().filter(|line| line.matched == Match::Moved).count();
    if moved > 0 {
        let lines = if moved == 1 { "1 line" } else { &*format!("{moved} lines") };
        writeln!(out, "  {lines} moved within the same function (→)")?;
    }
    difference.holders.as_ref().map_or(Ok(()), |changes| write_holders(out, difference, changes, style))?;
    let title = "By layer (inner layers not included)";
    write_layers(out, title, difference, &difference.layers, Figure::Bytes, style)?;
    let ranges = difference.ranges.iter().map(|range| (range.bytes, range_name(&range.path))).collect();
    table(out, "By range (inner ranges not included)", ranges, "range", Figure::Bytes, style)?;
    difference.times.as_ref().map_or(Ok(()), |times| write_times(out, difference, times, style))
}

fn write_holders(
    out: &mut impl Write,
    difference: &Difference,
    changes: &HolderChanges,
    style: Style,
) -> io::Result<()> {
    writeln!(out, "\nHolders of the memory of lines that grew")?;
    let mut table = Table::new(&["before", "after", "change", "holder"]);
    for row in changes.rows.iter().take(MAX_ROWS) {
        let bytes = |bytes: Option<u64>| bytes.map_or_else(|| "?".to_owned(), size);
        let change = row.by().map_or_else(|| "?".to_owned(), |by| Figure::Bytes.change(by));
        let name = clean(&row.holder.what.text()).into_owned();
        table.row(vec![bytes(row.before), bytes(row.after), change, name]);
    }
    if !table.is_empty() {
        table.lines(style.columns).iter().try_for_each(|line| writeln!(out, "{line}"))?;
    }
    for (name, side, search) in
        [("before", &difference.before, changes.before), ("after", &difference.after, changes.after)]
    {
        let found = match search {
            Some(search) => {
                format!("searched {}, at {}", format::step_reached(search.step), format::duration(search.time))
            }
            None => format!("no search near {}", side.named.moment),
        };
        writeln!(out, "  {name:<6}  {found}")?;
    }
    let Some(first) = changes.rows.first().filter(|row| row.by().is_none_or(|by| by > 0)) else { return Ok(()) };
    let freed = format!("Releasing it frees {}. {}", size(first.holder.releases), first.holder.cure);
    wrapped("  →", &clean(&freed), style.columns).iter().try_for_each(|line| writeln!(out, "{line}"))
}

fn write_times(out: &mut impl Write, difference: &Difference, times: &TimeDifference, style: Style) -> io::Result<()> {
    let Difference { before, after, .. } = difference;
    let title = if before.work_part == after.work_part {
        format!("GPU time over {} each", before.work_part)
    } else {
        format!("GPU time over {}, then over {} (not comparable)", before.work_part, after.work_part)
    };
    table(out, &title, vec![(times.total, "total".to_owned())], "", Figure::Time, style)?;
    let title = "GPU time by layer (inner layers not included)";
    write_layers(out, title, difference, &times.layers, Figure::Time, style)?;
    let lines = times.lines[difference.scope].iter().map(|line| (line.change, line_name(line, before, after)));
    table(out, "GPU time by line", lines.collect(), "line", Figure::Time, style)?;
    let kernels = times.kernels.iter().map(|kernel| (kernel.change, clean(&kernel.short_name).into_owned()));
    table(out, "GPU time by kernel and copy", kernels.collect(), "kernel", Figure::Time, style)
}

/// Unit of a table's figures.
#[derive(Clone, Copy)]
enum Figure {
    Bytes,
    Time,
}

impl Figure {
    fn text(self, figure: u64) -> String {
        match self {
            Self::Bytes => size(figure),
            Self::Time => format::time_spent(figure),
        }
    }

    fn change(self, change: i64) -> String {
        format::change(change, |figure| self.text(figure))
    }
}

/// Table of layers; empty if no memory or time is in a layer.
fn write_layers(
    out: &mut impl Write,
    title: &str,
    difference: &Difference,
    layers: &[LayerChange],
    figure: Figure,
    style: Style,
) -> io::Result<()> {
    if layers.iter().all(|change| change.layer.name.is_none()) {
        return Ok(());
    }
    let several = difference.before.roots.len() > 1 || difference.after.roots.len() > 1;
    let rows = layers::groups(layers).into_iter().map(|group| {
        let words = group.words(|by| figure.change(by));
        (group.sum.change, layer_name(&group.sum, several) + &words)
    });
    table(out, title, rows.collect(), "layer", figure, style)
}

fn side_lines(side: &Side) -> [String; 2] {
    // The name of a step's end contains the step already.
    let steps = match (side.steps_ended, side.named.moment) {
        (0, _) | (_, NamedMoment::Step(_)) => String::new(),
        (ended, _) => format!(", {}", format::step_during(ended, side.steps)),
    };
    let device = &side.device;
    let name = if device.name.is_empty() { String::new() } else { format!(" {}", device.name) };
    let (path, moment) = (side.named.path.display(), side.named.moment);
    let then = format!("{path} at {moment}, {}{steps}", format::duration(side.time));
    let what = format!("{}, cuda:{}{name}", short_command(&side.command), device.index);
    [clean(&then).into_owned(), clean(&what).into_owned()]
}

fn line_name(change: &LineChange, before: &Side, after: &Side) -> String {
    let Some(line) = change.after.as_ref().or(change.before.as_ref()) else { return "(no Python line)".to_owned() };
    let file = change.file(before, after).unwrap_or_default();
    let number = line.line.map(|number| format!(":{number}")).unwrap_or_default();
    let from = match (&change.before, change.matched) {
        (Some(before), Match::Moved) => before.line.map(|number| format!(":{number} →")).unwrap_or_default(),
        _ => String::new(),
    };
    let function = line.function.rsplit("<locals>.").next().unwrap_or(&line.function);
    clean(&format!("{file}{from}{number}  {function}")).into_owned()
}

fn layer_name(change: &LayerChange, several_roots: bool) -> String {
    let layer = &change.layer;
    let (class, root) = (layer.class.as_deref().unwrap_or(""), layer.root_name.as_deref().unwrap_or(""));
    let name = match layer.name.as_deref() {
        None => "(outside any layer)".to_owned(),
        Some("") if root == class => format!("{root} (outermost)"),
        Some("") => format!("{root}  {class} (outermost)"),
        Some(name) if several_roots && !root.is_empty() => format!("{root}: {name}  {class}"),
        Some(name) => format!("{name}  {class}"),
    };
    clean(name.trim()).into_owned()
}

fn table(
    out: &mut impl Write,
    title: &str,
    rows: Vec<(Change, String)>,
    last: &'static str,
    figure: Figure,
    style: Style,
) -> io::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let is_all = last.is_empty();
    let (changed, same): (Vec<_>, Vec<_>) = rows.into_iter().partition(|(change, _)| is_all || change.by() != 0);
    writeln!(out, "\n{title}")?;
    let mut table = Table::new(&["before", "after", "change", "", last]);
    for (change, name) in changed.iter().take(MAX_ROWS) {
        let painted = |cell: String| match change.by() {
            1.. if style.colored => Color::Red.paint(&cell),
            ..=-1 if style.colored => Color::Green.paint(&cell),
            _ => cell,
        };
        let [before, after] = [change.before, change.after].map(|held| figure.text(held));
        table.row(vec![before, after, painted(figure.change(change.by())), painted(share(*change)), name.clone()]);
    }
    if !table.is_empty() {
        table.lines(style.columns).iter().try_for_each(|line| writeln!(out, "{line}"))?;
    }
    if changed.len() > MAX_ROWS {
        let rest = changed[MAX_ROWS..].iter().fold(0_i64, |sum, (change, _)| sum.saturating_add(change.by()));
        let count = format::grouped((changed.len() - MAX_ROWS) as u64);
        writeln!(out, "  and {count} more, together {}", figure.change(rest))?;
    }
    if !same.is_empty() {
        let held = same.iter().fold(0_u64, |sum, (change, _)| sum.saturating_add(change.after));
        let all = if changed.is_empty() { "nothing changed: " } else { "" };
        writeln!(out, "  {all}{} unchanged, with {}", format::grouped(same.len() as u64), figure.text(held))?;
    }
    Ok(())
}

/// Change in percent of the first figure.
fn share(change: Change) -> String {
    match (change.before, change.after) {
        (before, after) if before == after => String::new(),
        (0, _) => "new".to_owned(),
        (_, 0) => "gone".to_owned(),
        (before, after) => {
            let sign = if after > before { '+' } else { '-' };
            match change.after / before {
                // From a factor of 10 on, show the factor instead of a percentage.
                times @ 10.. => format!("× {}", format::count(times)),
                _ => format!("{sign}{}", format::percent(change.by().unsigned_abs(), before)),
            }
        }
    }
}
