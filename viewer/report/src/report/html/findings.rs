//! Findings of a run, each with its next step.

use maud::{Markup, html};

use super::super::names::ReportNames;
use crate::page::elements::name;
use memlab_base::findings::{Kind, Word, Words, headline, of as findings_of, verdict};
use memlab_base::text::clean;

/// The verdict, the findings, each with its next step, and the headline on the memory at the peak.
pub(super) fn section(names: &ReportNames<'_>) -> Markup {
    let Some(headline) = headline(names.model) else { return Markup::default() };
    let findings = findings_of(names.model);
    let is_bad = findings.first().is_some_and(|finding| finding.kind == Kind::OutOfMemory);
    let found: Vec<_> = findings.iter().map(|finding| (&finding.what, finding.next.as_str())).collect();
    html! {
        @if let Some(verdict) = verdict(names.model, &findings) { p.headline { (markup_words(&verdict)) } }
        (finding_list(is_bad, &found, Some(markup_words(&headline))))
    }
}

/// Findings, each with its next step, and a last sentence. `is_bad`: the first finding ended the run.
pub(in crate::report) fn finding_list(is_bad: bool, found: &[(&Words, &str)], last: Option<Markup>) -> Markup {
    html! {
        section.verdict.bad[is_bad].warn[!is_bad && !found.is_empty()] aria-label="findings" {
            @for (what, next) in found { p { (markup_words(what)) br; span.next { "→ " (with_code(next)) } } }
            @if let Some(last) = last { p { (last) } }
        }
    }
}

/// Text as HTML; parts between backticks are code.
pub(super) fn with_code(text: &str) -> Markup {
    html! {
        @for (index, part) in text.split('`').enumerate() {
            @if index % 2 == 1 { code { (clean(part)) } } @else { (clean(part)) }
        }
    }
}

/// Words as HTML.
pub(super) fn markup_words(words: &Words) -> Markup {
    html! {
        @for word in words.parts() {
            @match word {
                Word::Plain(text) => (clean(text)),
                Word::Code(text) => code { (name(text)) },
                Word::Strong(text) => strong { (clean(text)) },
            }
        }
    }
}
