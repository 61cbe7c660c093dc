//! Advice, as tried on the recorded run.

use maud::{Markup, html};
use memlab_predict::advice::AdviceReport;

use super::super::advice::{ORDER, conclusions, place_of_tried, summary, title};
use super::findings::with_code;
use crate::page::elements::note;
use memlab_base::text::clean;

/// The chapter; empty without advice.
pub(super) fn section(advices: Option<&AdviceReport>) -> Markup {
    let Some(advices) = advices.filter(|advices| !advices.advice.is_empty()) else { return Markup::default() };
    html! {
        section #advice {
            h2 { "Advice" }
            (note(&format!("{}. {ORDER}.", title(advices))))
            ol {
                @for advice in &advices.advice {
                    li {
                        strong { (clean(&summary(advice))) }
                        br;
                        (with_code(&advice.because))
                        pre { (advice.how.lines().map(clean).collect::<Vec<_>>().join("\n")) }
                    }
                }
            }
            @for line in conclusions(advices) { p { (clean(&line)) } }
            @if !advices.tried.is_empty() {
                h3 { "Tried, but not advised" }
                ul { @for tried in &advices.tried { li { (clean(&place_of_tried(tried))) } } }
            }
        }
    }
}
