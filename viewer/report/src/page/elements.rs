//! HTML elements that the parts of a page share.
//!
//! maud escapes every text on a page; text from a trace is also [cut](cut) and cleaned here.

use maud::{Markup, html};
use memlab_trace::{Category, DeviceView};

use memlab_base::category::{LETTERS, category_index};
use memlab_base::text::{clean, fit_end};
pub use memlab_units::format::{counted as plural, size};

/// Longest name on a page, in columns.
pub(crate) const MAX_NAME_COLUMNS: usize = 120;

/// A name from a trace, clean and cut to a length.
pub fn name(text: &str) -> String {
    cut(text, MAX_NAME_COLUMNS)
}

/// A text from a trace, clean and cut to this width.
pub fn cut(text: &str, columns: usize) -> String {
    clean(&fit_end(text, columns, "…")).into_owned()
}

/// Percentage for `width:12.34%`; the figures may exceed the range of exact floating-point numbers.
pub fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 }
}

/// Short name of a device: `cuda:0`.
pub fn short_name(device: &DeviceView) -> String {
    format!("cuda:{}", device.index)
}

/// Facts on a process or a plan, shown beside its command.
pub fn facts(facts: &[String]) -> Markup {
    html! { ul.facts { @for fact in facts { li { (name(fact)) } } } }
}

/// Head of a page: kind, command and facts. `whole`: the full command, shown as a tooltip.
pub(crate) fn header(kind: &str, command: &str, whole: Option<String>, facts: &[String]) -> Markup {
    html! {
        header {
            p.brand { "memlab " (kind) }
            h1 title=[whole] { (command) }
            (self::facts(facts))
        }
    }
}

/// A main figure: name, bytes, and a remark.
pub(crate) type Tile = (&'static str, u64, String);

/// Figures side by side.
pub(crate) fn tiles(tiles: &[Tile]) -> Markup {
    html! {
        dl.tiles {
            @for (what, bytes, more) in tiles {
                div.tile { dt { (what) } dd { (size(*bytes)) small { (clean(more)) } } }
            }
        }
    }
}

/// A sentence beside a table or a picture.
pub fn note(said: &str) -> Markup {
    html! { p.note { (clean(said)) } }
}

/// Lines, one below the other.
pub(crate) fn broken(lines: &[String]) -> Markup {
    html! { @for (index, line) in lines.iter().enumerate() { @if index > 0 { br; } (cut(line.trim(), 400)) } }
}

/// Colour of a category, with its letter.
pub(crate) fn swatch(category: Category) -> Markup {
    let index = category_index(category);
    html! { span.swatch.{ "c" (index) } { (LETTERS[index]) } }
}
