//! Advice, as tried on the recorded run.

use maud::{Markup, html};
use memlab_predict::advice::AdviceReport;

use super::super::advice::{conclusions, name, order, place_of_tried, reason, saving, title};
use super::findings::with_code;
use crate::page::elements::note;
use memlab_base::text::clean;

/// The chapter; empty without advice.
pub(super) fn section(advices: Option<&AdviceReport>) -> Markup {
    let Some(advices) = advices.filter(|advices| !advices.advice.is_empty()) else { return Markup::default() };
    html! {
        section #advice {
            h2 { "Advice" }
            (note(&format!("{}. {}.", title(advices), order(advices))))
            ol.changes {
                @for advice in &advices.advice {
                    li {
                        details {
                            summary { strong { (clean(&name(advice))) } " " span.num { (clean(&saving(advice))) } }
                            p { (with_code(&reason(advice))) }
                            pre { (advice.how.lines().map(clean).collect::<Vec<_>>().join("\n")) }
                        }
                    }
                }
            }
            @for line in conclusions(advices) { p { (clean(&line)) } }
            @if !advices.tried.is_empty() {
                details.more {
                    summary { "tried, but not advised" }
                    ul { @for tried in &advices.tried { li { (clean(&place_of_tried(tried))) } } }
                }
            }
        }
    }
}
