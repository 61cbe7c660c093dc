//! What to change, as tried on the recorded run.

use std::fmt::Write as _;

use memlab_predict::advice::{Advice, AdviceReport};

use super::super::advice::{conclusions, place_of_tried, summary, title};
use memlab_base::text::markup;

/// The chapter; nothing if there is nothing to change.
pub(super) fn section(advices: Option<&AdviceReport>) -> String {
    let Some(advices) = advices.filter(|advices| !advices.advice.is_empty()) else { return String::new() };
    let mut section =
        format!("<section id=\"advice\">\n<h2>Advice</h2>\n<p class=\"note\">{}</p>\n<ol>\n", markup(&title(advices)));
    for advice in &advices.advice {
        let Advice { because, how, .. } = advice;
        let _ = write!(
            section,
            "<li><strong>{}</strong><br>{}\n<pre>{}</pre></li>\n",
            markup(&summary(advice)),
            markup(because),
            how.lines().map(markup).collect::<Vec<_>>().join("\n")
        );
    }
    section += "</ol>\n";
    for line in conclusions(advices) {
        let _ = writeln!(section, "<p>{}</p>", markup(&line));
    }
    if !advices.tried.is_empty() {
        let tried: String =
            advices.tried.iter().map(|tried| format!("<li>{}</li>\n", markup(&place_of_tried(tried)))).collect();
        let _ = write!(section, "<h3>Tried, and not advised</h3>\n<ul>\n{tried}</ul>\n");
    }
    section + "</section>\n"
}
