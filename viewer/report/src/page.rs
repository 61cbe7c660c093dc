//! A self-contained web page, for viewing, printing and sharing.
//!
//! Text from a trace or a program is never trusted. Every text is escaped when it enters the page. The page's policy
//! allows only its own scripts and no network requests.

pub(crate) mod chart;
pub mod elements;
pub(crate) mod stacked;
pub(crate) mod table;

use std::collections::hash_map::RandomState;
use std::fmt::Write as _;
use std::hash::{BuildHasher, Hasher};

use elements::name;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use memlab_trace::Category;
use ratatui::style::Color;

use crate::export::{flamegraph, svg};
use memlab_base::theme::{Depth, Palette, Theme};

/// A whole page around its content.
///
/// `kind`: report or plan. `source`: origin of the data.
pub(crate) fn document(kind: &str, title: &str, source: &str, body: &Markup) -> String {
    let nonce = nonce();
    let policy = format!(
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'nonce-{nonce}'; base-uri 'none'; form-action 'none'"
    );
    let script = [include_str!("page/script.js"), flamegraph::SCRIPT].concat();
    let body = html! {
        body {
            (body)
            footer { "Made by memlab " (env!("CARGO_PKG_VERSION")) " " (source) "." }
            script nonce=(nonce) { "\n" (PreEscaped(script)) }
        }
    };
    let policy = html! { meta http-equiv="Content-Security-Policy" content=(policy); };
    whole(&format!("{} – memlab {kind}", name(title)), &policy, "", &body)
}

/// A page whose content arrives later, from its script.
pub struct Document<'d> {
    /// Title.
    pub title: &'d str,
    /// Style, added to that of every page.
    pub style: &'d str,
    /// Initial content.
    pub body: &'d Markup,
    /// Script, appended to that of every page.
    pub script: &'d str,
}

/// Renders such a page. The server sends its policy, with this nonce.
pub fn live_document(document: &Document<'_>, nonce: &str) -> String {
    let script = [flamegraph::SCRIPT, include_str!("page/script.js"), document.script].concat();
    let body = html! { body.live { (document.body) script nonce=(nonce) { "\n" (PreEscaped(script)) } } };
    whole(document.title, &html! { link rel="icon" href="data:,"; }, document.style, &body)
}

fn whole(title: &str, head: &Markup, style: &str, body: &Markup) -> String {
    let style = [&colors(), include_str!("page/style.css"), flamegraph::STYLE, style].concat();
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                (head)
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) }
                style { "\n" (PreEscaped(style)) }
            }
            (body)
        }
    };
    page.into_string() + "\n"
}

/// A random word, so that only the scripts of this page run.
pub fn nonce() -> String {
    let word = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", word(), word())
}

/// Colours of the dashboard, for the light and the dark page: categories, text on them, the chart's bands.
fn colors() -> String {
    let variables = |palette: Palette| {
        let theme = Theme::new(palette, Depth::True, true);
        let hex = |color: Color| svg::hex(color).unwrap_or_else(|| "currentColor".to_owned());
        let mut text = String::new();
        for (index, category) in Category::ALL.into_iter().enumerate() {
            let _ = write!(
                text,
                "--c{index}:{};--on{index}:{};",
                hex(theme.category(category)),
                hex(theme.on_category[index])
            );
        }
        for (index, band) in theme.bands.into_iter().enumerate() {
            let _ = write!(text, "--band{index}:{};", hex(band));
        }
        text
    };
    let classes: String = (0..Category::ALL.len())
        .map(|index| format!(".c{index}{{--c:var(--c{index});--on:var(--on{index})}}"))
        .collect();
    format!(
        ":root{{{}}}\n@media (prefers-color-scheme: dark){{:root{{{}}}}}\n{classes}\n",
        variables(Palette::Light),
        variables(Palette::Dark)
    )
}
