//! Tables that sort when their heads are clicked.

use std::fmt::Write as _;

use super::elements::{name, plural, share, size};
use memlab_base::text::markup;
use memlab_units::format;

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Column {
    /// Numbers: the first click sorts from the largest.
    Number,
    /// The same, and the table comes sorted by it.
    Sorted,
    /// Text.
    Name,
}

/// A table under construction.
pub(crate) struct Table {
    html: String,
    count: usize,
}

impl Table {
    pub(crate) fn new(label: &str, head: &[(&str, Column)]) -> Self {
        let mut html = format!("<div class=\"scroll\"><table class=\"sortable\" aria-label=\"{label}\">\n<thead><tr>");
        for (title, column) in head {
            let class = if *column == Column::Name { "name" } else { "num" };
            let sort = if *column == Column::Sorted { "descending" } else { "none" };
            let _ = write!(
                html,
                "<th scope=\"col\" class=\"{class}\" aria-sort=\"{sort}\"><button type=\"button\">{title}</button></th>"
            );
        }
        html += "</tr></thead>\n<tbody>\n";
        Self { html, count: 0 }
    }

    pub(crate) fn row(&mut self, cells: &[String]) {
        let _ = writeln!(self.html, "<tr>{}</tr>", cells.concat());
        self.count += 1;
    }

    /// The table; `rest`: what was left out, as a sentence. Nothing, if it has no rows.
    pub(crate) fn finish(self, rest: Option<String>) -> String {
        if self.count == 0 {
            return String::new();
        }
        let rest = rest.map(|rest| format!("<p class=\"note\">{rest}</p>\n")).unwrap_or_default();
        format!("{}</tbody>\n</table></div>\n{rest}", self.html)
    }
}

/// A size; with a bar as long as its share of `most`, if there is one.
pub(crate) fn bytes(bytes: u64, most: Option<u64>) -> String {
    let heat = most.map(|most| format!(" heat\" style=\"--h:{:.1}%", share(bytes, most))).unwrap_or_default();
    format!("<td class=\"num{heat}\" data-v=\"{bytes}\">{}</td>", size(bytes))
}

/// A time; with a bar likewise.
pub(crate) fn time(nanoseconds: u64, most: Option<u64>) -> String {
    let heat = most.map(|most| format!(" heat\" style=\"--h:{:.1}%", share(nanoseconds, most))).unwrap_or_default();
    let text = if nanoseconds == 0 { "–".to_owned() } else { format::time_spent(nanoseconds) };
    format!("<td class=\"num{heat}\" data-v=\"{nanoseconds}\">{text}</td>")
}

pub(crate) fn number(value: u64, text: &str) -> String {
    format!("<td class=\"num\" data-v=\"{value}\">{}</td>", markup(text))
}

pub(crate) fn text(text: &str) -> String {
    format!("<td class=\"name\">{}</td>", name(text))
}

/// `and 12 more with 34.0 MiB`, of rows that are left out.
pub(crate) fn rest(left_out: &[u64]) -> Option<String> {
    let bytes = left_out.iter().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
    (!left_out.is_empty())
        .then(|| format!("and {} with {}: see --json", plural(left_out.len() as u64, "more row"), size(bytes)))
}
