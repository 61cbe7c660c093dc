//! Tables that sort when their heads are clicked.

use maud::{Markup, html};

use super::elements::{name, plural, share, size};
use memlab_base::text::clean;
use memlab_units::format;

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Numbers: the first click sorts from the largest.
    Number,
    /// The same, and the table comes sorted by it.
    Sorted,
    /// Shares of what the title says.
    Percent,
    /// Text.
    Name,
}

/// A column: its title, what it holds, and its cell in a row.
pub(crate) type Column<'c, R> = (&'c str, Kind, &'c dyn Fn(&R) -> Markup);

/// A table; nothing, if it has no rows.
pub(crate) fn table<R>(label: &str, rows: &[R], columns: &[Column<'_, R>]) -> Markup {
    html! {
        @if !rows.is_empty() {
            div.scroll {
                table.sortable aria-label=(label) {
                    thead { tr { @for (title, kind, _) in columns { (head(title, *kind)) } } }
                    tbody { @for row in rows { tr { @for (.., cell) in columns { (cell(row)) } } } }
                }
            }
        }
    }
}

/// The first `cap` rows as a table, and how many are left out with how many bytes.
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

/// `and 12 more rows with 34.0 MiB`: `held` by rows that are left out.
pub(crate) fn rest(left_out: usize, held: &str) -> Markup {
    html! {
        @if left_out > 0 { p.note { "and " (plural(left_out as u64, "more row")) " with " (held) ": see --json" } }
    }
}

fn head(title: &str, kind: Kind) -> Markup {
    let class = if kind == Kind::Name { "name" } else { "num" };
    let sort = if kind == Kind::Sorted { "descending" } else { "none" };
    html! {
        th scope="col" class=(class) aria-sort=(sort) {
            button type="button" { @if kind == Kind::Percent { "% " } (title) }
        }
    }
}

/// A figure, and the number that it is sorted by; with a bar as long as its share of `most`, if there is one.
fn figure(value: u64, most: Option<u64>, text: &str) -> Markup {
    let heat = most.map(|most| format!("--h:{:.1}%", share(value, most)));
    html! { td.num.heat[heat.is_some()] style=[heat] data-v=(value) { (clean(text)) } }
}

/// A size; with a bar as long as its share of `most`, if there is one.
pub(crate) fn bytes(bytes: u64, most: Option<u64>) -> Markup {
    figure(bytes, most, &size(bytes))
}

/// A time; with a bar likewise.
pub(crate) fn time(nanoseconds: u64, most: Option<u64>) -> Markup {
    figure(nanoseconds, most, &if nanoseconds == 0 { "–".to_owned() } else { format::time_spent(nanoseconds) })
}

/// A text, and the number that it is sorted by.
pub(crate) fn number(value: u64, text: &str) -> Markup {
    figure(value, None, text)
}

pub(crate) fn count(count: u64) -> Markup {
    number(count, &format::grouped(count))
}

pub(crate) fn percent(part: u64, whole: u64) -> Markup {
    number(part, &format::percent(part, whole))
}

/// The same for a number that may have a fraction or a sign.
pub(crate) fn decimal(value: impl std::fmt::Display, text: &str) -> Markup {
    html! { td.num data-v=(value) { (text) } }
}

pub(crate) fn text(text: &str) -> Markup {
    html! { td.name { (name(text)) } }
}
