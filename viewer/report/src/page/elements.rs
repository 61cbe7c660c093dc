//! Pieces of HTML that the parts of a page share.
//!
//! maud escapes every text that is put into a page; what a trace says is also [cut](cut) and cleaned here.

use maud::{Markup, html};
use memlab_trace::{Category, DeviceView};

use memlab_base::category::{LETTERS, category_index};
use memlab_base::text::{clean, fit_end};
pub use memlab_units::format::{counted as plural, size};

/// The longest name shown, in columns.
pub(crate) const MAX_NAME_COLUMNS: usize = 120;

/// A name out of a trace, clean and cut to a length.
pub fn name(text: &str) -> String {
    cut(text, MAX_NAME_COLUMNS)
}

/// A text out of a trace, clean and cut to so many columns.
pub fn cut(text: &str, columns: usize) -> String {
    clean(&fit_end(text, columns, "…")).into_owned()
}

/// `width:12.34%`, of what may be larger than a number can count.
pub fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 }
}

/// What a device is called: `cuda:0`.
pub fn short_name(device: &DeviceView) -> String {
    format!("cuda:{}", device.index)
}

/// Facts on a process or a plan, beside its command.
pub fn facts(facts: &[String]) -> Markup {
    html! { ul.facts { @for fact in facts { li { (name(fact)) } } } }
}

/// The head of a page: what it is, the command, and facts. `whole`: the command in full, where one points at it.
pub(crate) fn header(kind: &str, command: &str, whole: Option<String>, facts: &[String]) -> Markup {
    html! {
        header {
            p.brand { "memlab " (kind) }
            h1 title=[whole] { (command) }
            (self::facts(facts))
        }
    }
}

/// A figure that matters, what it is, and what there is to add.
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

/// Lines below each other.
pub(crate) fn broken(lines: &[String]) -> Markup {
    html! { @for (index, line) in lines.iter().enumerate() { @if index > 0 { br; } (cut(line.trim(), 400)) } }
}

/// The colour of a category, with its letter.
pub(crate) fn swatch(category: Category) -> Markup {
    let index = category_index(category);
    html! { span.swatch.{ "c" (index) } { (LETTERS[index]) } }
}
