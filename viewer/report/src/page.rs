//! A web page that needs nothing else, to look at, to print and to pass on.
//!
//! Nothing that a trace or a program says is trusted: every text goes through [`memlab_base::text::markup`], and the page's own policy
//! lets no script run but its own and nothing be fetched.

pub(crate) mod axes;
pub mod elements;
pub(crate) mod table;

use std::collections::hash_map::RandomState;
use std::fmt::Write as _;
use std::hash::{BuildHasher, Hasher};

use elements::name;
use memlab_trace::Category;
use ratatui::style::Color;

use crate::export::{flamegraph, svg};
use memlab_base::theme::{Depth, Palette, Theme};

/// A whole page around what it says.
///
/// `kind`: report or plan. `source`: from what it was made, as HTML, as is `body`.
pub(crate) fn document(kind: &str, title: &str, source: &str, body: &str) -> String {
    let nonce = nonce();
    let title = name(title);
    format!(
        "<!DOCTYPE html>
<html lang=\"en\">
<head>
<meta charset=\"utf-8\">
<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'nonce-{nonce}'; \
         base-uri 'none'; form-action 'none'\">
<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">
<meta name=\"color-scheme\" content=\"light dark\">
<title>{title} – memlab {kind}</title>
<style>
{colors}{style}{flames}</style>
</head>
<body>
{body}<footer>Made by memlab {version} {source}.</footer>
<script nonce=\"{nonce}\">
{script}{flame_script}</script>
</body>
</html>
",
        colors = colors(),
        style = include_str!("page/style.css"),
        flames = flamegraph::STYLE,
        script = include_str!("page/script.js"),
        flame_script = flamegraph::SCRIPT,
        version = env!("CARGO_PKG_VERSION"),
    )
}

/// A page whose content comes later, from its script.
pub struct Document<'d> {
    /// Its title.
    pub title: &'d str,
    /// Its style, beside that of every page.
    pub style: &'d str,
    /// What is there from the beginning, as HTML.
    pub body: &'d str,
    /// Its script, behind that of every page.
    pub script: &'d str,
}

/// Such a page; its policy, with this nonce, is the server's.
pub fn live_document(document: &Document<'_>, nonce: &str) -> String {
    format!(
        "<!DOCTYPE html>
<html lang=\"en\">
<head>
<meta charset=\"utf-8\">
<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">
<meta name=\"color-scheme\" content=\"light dark\">
<link rel=\"icon\" href=\"data:,\">
<title>{title}</title>
<style>
{colors}{style}{flames}{more}</style>
</head>
<body class=\"live\">
{body}<script nonce=\"{nonce}\">
{flame_script}{script}{more_script}</script>
</body>
</html>
",
        title = name(document.title),
        colors = colors(),
        style = include_str!("page/style.css"),
        flames = flamegraph::STYLE,
        more = document.style,
        body = document.body,
        script = include_str!("page/script.js"),
        flame_script = flamegraph::SCRIPT,
        more_script = document.script,
    )
}

/// A random word, so that only the scripts of this page run.
pub fn nonce() -> String {
    let word = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", word(), word())
}

/// The dashboard's colours, for the light and the dark page: categories, text on them, the chart's bands.
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
