//! What one would say if there were only a few sentences.

use std::fmt::Write as _;

use super::super::names::ReportNames;
use crate::page::elements::MAX_NAME_COLUMNS;
use memlab_base::findings::{self, Finding, Kind, Word, Words};
use memlab_base::text::{fit_end, markup};

/// The findings, each with what to do next, and what the memory was used for.
pub(super) fn verdict(names: &ReportNames<'_>) -> String {
    let Some(headline) = findings::headline(names.model) else { return String::new() };
    let findings = findings::of(names.model);
    let class = match findings.first().map(|finding| finding.kind) {
        Some(Kind::OutOfMemory) => "verdict bad",
        Some(_) => "verdict warn",
        None => "verdict",
    };
    let mut section = format!("<section class=\"{class}\" aria-label=\"what to look at\">\n");
    for Finding { what, next, .. } in &findings {
        let _ = writeln!(section, "<p>{}<br><span class=\"next\">→ {}</span></p>", markup_words(what), markup(next));
    }
    let _ = write!(section, "<p>{}</p>\n</section>\n", markup_words(&headline));
    section
}

/// Words as HTML.
pub(in crate::report) fn markup_words(words: &Words) -> String {
    let word = |word: &Word| match word {
        Word::Plain(text) => markup(text).into_owned(),
        Word::Code(text) => format!("<code>{}</code>", markup(&fit_end(text, MAX_NAME_COLUMNS, "…"))),
        Word::Strong(text) => format!("<strong>{}</strong>", markup(text)),
    };
    words.parts().iter().map(word).collect()
}
