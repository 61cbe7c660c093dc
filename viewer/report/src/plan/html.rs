//! A plan as a page: what fits, what holds most, and what to do, with pictures.

mod batches;
mod course;
mod picture;
mod tables;

use std::fmt::Write as _;
use std::io;

use super::answer::Answer;
use super::pictures::Pictures;
use crate::page;
use crate::page::elements::{name, size};
use memlab_base::text::markup;
use memlab_units::format;

/// Writes a plan as an HTML page. `command`: what was planned.
///
/// # Errors
///
/// What `out` says.
pub fn write(out: &mut impl io::Write, command: &str, answer: &Answer, pictures: &Pictures) -> io::Result<()> {
    let mut body = header(command, answer);
    body += "<main>\n";
    body += &verdict(answer);
    body += &tiles(answer);
    if let Some(sequence) = &answer.sequence {
        body += "<section id=\"sequence\">\n<h2>Steps of different lengths</h2>\n";
        body += &tables::sequence(sequence);
        let _ = writeln!(
            body,
            "</section>\n<p>The rest is for steps of length {} only.</p>",
            format::grouped(sequence.longest)
        );
    }
    body += "<section id=\"batches\">\n<h2>Batch size</h2>\n";
    body += &batches::figure(answer, &pictures.batches);
    body += &tables::batches(answer);
    body += "</section>\n<section id=\"peak\">\n";
    let batch = answer.peak.batch.map_or(String::new(), |batch| format!(" at batch {}", format::grouped(batch)));
    let _ = writeln!(body, "<h2>The steps{batch}</h2>");
    body += &course::figure(answer, &pictures.course);
    body += &tables::phases(answer);
    body += &tables::held(answer);
    body += "</section>\n<section id=\"settings\">\n<h2>Settings of the allocator</h2>\n";
    body += &tables::settings(answer);
    body += "</section>\n";
    if !answer.warnings.is_empty() {
        let notes: String = answer.warnings.iter().map(|text| format!("<li>{}</li>\n", markup(text))).collect();
        let _ = write!(
            body,
            "<section id=\"notes\">\n<h2>What the figures do not say</h2>\n<ul>\n{notes}</ul>\n</section>\n"
        );
    }
    body += "</main>\n";
    let recorded = match &answer.recorded_batches[..] {
        [] => "from a recording of the program as it is".to_owned(),
        batches => format!("from recordings at batch {}", listed(batches)),
    };
    out.write_all(page::document("plan", command, &recorded, &body).as_bytes())
}

fn listed(batches: &[u64]) -> String {
    batches.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
}

fn header(command: &str, answer: &Answer) -> String {
    let card = &answer.card;
    let outside = card.context_bytes + answer.library_bytes;
    let mut facts = vec![
        card.name.clone(),
        format!("{} of memory", size(card.bytes)),
        format!("{} of them for PyTorch", size(card.bytes.saturating_sub(outside))),
        format!("context {}{}", if card.context_is_measured { "" } else { "about " }, size(card.context_bytes)),
        format!("libraries {}", size(answer.library_bytes)),
    ];
    if answer.ranks > 1 {
        facts.push(format!("rank {} of {}", answer.rank, answer.ranks));
    }
    let facts: String = facts.iter().map(|fact| format!("<li>{}</li>", name(fact))).collect();
    format!(
        "<header>\n<p class=\"brand\">memlab plan</p>\n<h1>{}</h1>\n<ul class=\"facts\">{facts}</ul>\n</header>\n",
        name(command)
    )
}

/// Whether it fits, and what to do.
fn verdict(answer: &Answer) -> String {
    let fits = answer.batches.first().is_some_and(|row| row.fits);
    let (class, what) = match answer.largest_batch {
        Some(0) => ("verdict bad", "No batch fits.".to_owned()),
        Some(largest) => {
            ("verdict", format!("The largest batch that fits is <strong>{}</strong>.", format::grouped(largest)))
        }
        None if fits => ("verdict", "It fits.".to_owned()),
        None => ("verdict bad", "It does not fit.".to_owned()),
    };
    let advice: String =
        answer.advice.iter().map(|text| format!("<br><span class=\"next\">→ {}</span>", markup(text))).collect();
    format!("<section class=\"{class}\" aria-label=\"whether it fits\">\n<p>{what}{advice}</p>\n</section>\n")
}

/// The figures that matter most.
fn tiles(answer: &Answer) -> String {
    let peak = &answer.peak;
    let Some(row) = answer.batches.iter().find(|row| row.batch == peak.batch) else { return String::new() };
    let at = peak.batch.map_or(String::new(), |batch| format!("at batch {}", format::grouped(batch)));
    let tile = |(what, bytes, more): (&str, u64, &str)| {
        format!("<div class=\"tile\"><dt>{what}</dt><dd>{}<small>{}</small></dd></div>\n", size(bytes), markup(more))
    };
    let tiles = [
        ("allocated at most", row.peak_allocated_bytes, at.as_str()),
        ("reserved at most", row.peak_reserved_bytes, "on a card that is never full"),
        ("smallest card", row.needed_bytes, "context and libraries included"),
        ("the card", answer.card_bytes, answer.card.name.as_str()),
    ];
    format!("<dl class=\"tiles\">\n{}</dl>\n", tiles.map(tile).concat())
}
