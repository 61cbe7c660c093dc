//! Tables that are sorted by a click on a heading.

use maud::{Markup, html};

use super::elements::{name, plural, share, size};
use memlab_base::text::clean;
use memlab_units::format;

/// Content of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Numbers: the first click sorts largest first.
    Number,
    /// Numbers by which the table is sorted initially.
    Sorted,
    /// Shares of the quantity in the title.
    Percent,
    /// Text that names the row: it comes first.
    Name,
    /// Other text.
    Note,
}

/// A column: title, kind, and cell in a row.
pub(crate) type Column<'c, R> = (&'c str, Kind, &'c dyn Fn(&R) -> Markup);

/// A table; empty without rows. Names come first: they stay in sight when the figures are scrolled.
pub(crate) fn table<R>(label: &str, rows: &[R], columns: &[Column<'_, R>]) -> Markup {
    let (names, others) = columns.iter().partition::<Vec<_>, _>(|(_, kind, _)| *kind == Kind::Name);
    let ordered: Vec<_> = names.into_iter().chain(others).collect();
    html! {
        @if !rows.is_empty() {
            div.scroll {
                table.sortable aria-label=(label) style=(narrow_titles(&ordered)) {
                    thead { tr { @for (title, kind, _) in &ordered { (head(title, *kind)) } } }
                    tbody { @for row in rows { tr { @for (.., cell) in &ordered { (cell(row)) } } } }
                }
            }
        }
    }
}

/// Titles of the columns after the first as CSS variables: on a narrow screen they stand before the figures.
fn narrow_titles<R>(columns: &[&Column<'_, R>]) -> String {
    let titled = |(number, (title, kind, _)): (usize, &&Column<'_, R>)| {
        let title = title.replace(['\'', '\\'], "");
        format!("--c{number}:'{}{title} ';", if *kind == Kind::Percent { "% " } else { "" })
    };
    (1..).zip(columns).skip(1).map(titled).collect()
}

/// The first `cap` rows as a table, with the number and bytes of the remaining rows.
pub(crate) fn capped<R>(
    label: &str,
    rows: &[R],
    cap: usize,
    bytes: impl Fn(&R) -> u64,
    columns: &[Column<'_, R>],
) -> Markup {
    let (shown, left_out) = rows.split_at(cap.min(rows.len()));
    let bytes = left_out.iter().map(bytes).fold(0, u64::saturating_add);
    html! {
        (table(label, shown, columns))
        (rest(left_out.len(), &size(bytes)))
    }
}

/// `and 12 more rows with 34.0 MiB`; `held`: memory of the rows left out.
pub(crate) fn rest(left_out: usize, held: &str) -> Markup {
    html! {
        @if left_out > 0 { p.note { "and " (plural(left_out as u64, "more row")) " with " (held) ": see --json" } }
    }
}

fn head(title: &str, kind: Kind) -> Markup {
    let class = if matches!(kind, Kind::Name | Kind::Note) { "name" } else { "num" };
    let sort = if kind == Kind::Sorted { "descending" } else { "none" };
    html! {
        th scope="col" class=(class) aria-sort=(sort) {
            button type="button" { @if kind == Kind::Percent { "% " } (title) }
        }
    }
}

/// A figure with its sort key, and a bar as long as its share of `most`, if given.
fn figure(value: u64, most: Option<u64>, text: &str) -> Markup {
    let heat = most.map(|most| format!("--h:{:.1}%", share(value, most)));
    html! { td.num.heat[heat.is_some()] style=[heat] data-v=(value) { (clean(text)) } }
}

/// A size, with a bar as long as its share of `most`, if given.
pub(crate) fn bytes(bytes: u64, most: Option<u64>) -> Markup {
    figure(bytes, most, &size(bytes))
}

/// A time, with a bar likewise.
pub(crate) fn time(nanoseconds: u64, most: Option<u64>) -> Markup {
    figure(nanoseconds, most, &if nanoseconds == 0 { "–".to_owned() } else { format::time_spent(nanoseconds) })
}

/// A text with the number by which it is sorted.
pub(crate) fn number(value: u64, text: &str) -> Markup {
    figure(value, None, text)
}

pub(crate) fn count(count: u64) -> Markup {
    number(count, &format::grouped(count))
}

pub(crate) fn percent(part: u64, whole: u64) -> Markup {
    number(part, &format::percent(part, whole))
}

/// A text with a sort key that may have a fraction or a sign.
pub(crate) fn decimal(value: impl std::fmt::Display, text: &str) -> Markup {
    html! { td.num data-v=(value) { (text) } }
}

pub(crate) fn text(text: &str) -> Markup {
    html! { td.name { (name(text)) } }
}
