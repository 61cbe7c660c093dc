//! A plan as a page: fitting batch sizes, largest holders, advice and charts.

mod batches;
mod tables;
mod timeline;

use std::io;

use maud::{Markup, html};

use super::answer::Answer;
use super::charts::PlanCharts;
use crate::page;
use crate::page::elements::{self, name, size};
use memlab_base::text::clean;
use memlab_units::format;

/// Writes a plan as an HTML page. `command`: the planned command.
///
/// # Errors
///
/// Errors of `out`.
pub fn write(out: &mut impl io::Write, command: &str, answer: &Answer, charts: &PlanCharts) -> io::Result<()> {
    let body = html! {
        (header(command, answer))
        main {
            (answer_section(answer))
            (tiles(answer))
            @if let Some(sequence) = &answer.sequence {
                section #sequence { h2 { "Steps of different lengths" } (tables::sequence(sequence)) }
                p { "The sections below cover steps of length " (format::grouped(sequence.longest)) " only." }
            }
            section #batches {
                h2 { "Batch size" }
                (batches::figure(answer, &charts.batches))
                (tables::batches(answer))
            }
            section #peak {
                h2 { "The steps" (tables::at_batch(answer)) }
                (timeline::figure(answer, &charts.timeline))
                (tables::phases(answer))
                (tables::held(answer))
            }
            section #settings { h2 { "Allocator settings" } (tables::settings(answer)) }
            @if !answer.warnings.is_empty() {
                section #notes {
                    h2 { "Limits of the forecast" }
                    ul { @for text in &answer.warnings { li { (clean(text)) } } }
                }
            }
        }
    };
    let recorded = match &answer.recorded_batches[..] {
        [] => "from a recording of the program as it is".to_owned(),
        batches => format!("from recordings at batch {}", listed(batches)),
    };
    out.write_all(page::document("plan", command, &recorded, &body).as_bytes())
}

fn listed(batches: &[u64]) -> String {
    batches.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
}

fn header(command: &str, answer: &Answer) -> Markup {
    let card = &answer.card;
    let outside = card.context_bytes + answer.library_bytes;
    let mut facts = vec![
        card.name.clone(),
        format!("{} of memory", size(card.bytes)),
        format!("{} left for PyTorch", size(card.bytes.saturating_sub(outside))),
        format!("context {}{}", if card.context_is_measured { "" } else { "about " }, size(card.context_bytes)),
        format!("libraries {}", size(answer.library_bytes)),
    ];
    if answer.ranks > 1 {
        facts.push(format!("rank {} of {}", answer.rank, answer.ranks));
    }
    elements::header("plan", &name(command), None, &facts)
}

/// States whether the program fits, and gives advice.
fn answer_section(answer: &Answer) -> Markup {
    let fits = answer.batches.first().is_some_and(|row| row.fits);
    let (is_bad, what) = match answer.largest_batch {
        Some(0) => (true, html! { "No batch fits." }),
        Some(largest) => (false, html! { "The largest batch that fits is " strong { (format::grouped(largest)) } "." }),
        None if fits => (false, html! { "It fits." }),
        None => (true, html! { "It does not fit." }),
    };
    html! {
        section.verdict.bad[is_bad] aria-label="result" {
            p { (what) @for text in &answer.advice { br; span.next { "→ " (clean(text)) } } }
        }
    }
}

/// The main figures.
fn tiles(answer: &Answer) -> Markup {
    let Some(row) = answer.batches.iter().find(|row| row.batch == answer.peak.batch) else { return Markup::default() };
    elements::tiles(&[
        ("peak allocated", row.peak_allocated_bytes, tables::at_batch(answer).trim_start().to_owned()),
        ("peak reserved", row.peak_reserved_bytes, "on a card without limit".to_owned()),
        ("smallest card", row.needed_bytes, "context and libraries included".to_owned()),
        ("this card", answer.card_bytes, answer.card.name.clone()),
    ])
}
