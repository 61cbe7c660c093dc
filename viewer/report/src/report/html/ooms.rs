//! Out-of-memory errors: the request, the holders at that moment, and the next step.

use maud::{Markup, html};
use memlab_trace::{DeviceView, OomView};

use super::super::names::ReportNames;
use crate::page::elements::{cut, name, note, plural, share, size};
use memlab_base::category::{category_index, category_names};
use memlab_base::findings::{advice::advice, grows};
use memlab_units::format;

/// Maximum number of errors shown in full.
const OOMS: usize = 3;

/// Maximum number of holders listed for each.
const HOLDERS: usize = 8;

/// Deepest stack listed.
const FRAMES: usize = 60;

/// Out-of-memory event of a device at this time, if any.
pub(super) fn at(names: &ReportNames<'_>, device: &DeviceView, time: u64) -> Markup {
    let ooms = names.model.ooms();
    let at_oom = ooms.iter().find(|oom| oom.device == device.index && oom.time == time);
    at_oom.map(|oom| article(names, oom)).unwrap_or_default()
}

/// Out-of-memory events of a device.
pub(super) fn section(names: &ReportNames<'_>, device: &DeviceView) -> Markup {
    let ooms: Vec<OomView> = names.model.ooms().into_iter().filter(|oom| oom.device == device.index).collect();
    html! {
        @for oom in ooms.iter().take(OOMS) { (article(names, oom)) }
        @if ooms.len() > OOMS {
            (note(&format!("{}: see --json.", plural((ooms.len() - OOMS) as u64, "more out-of-memory error"))))
        }
    }
}

fn article(names: &ReportNames<'_>, oom: &OomView) -> Markup {
    let layer = oom.layer.as_deref().filter(|layer| !layer.is_empty());
    html! {
        article.oom {
            h3 { "✖ Out of memory after " (format::duration(oom.time)) ": " (size(oom.requested_bytes)) " requested" }
            ul {
                li {
                    "by " code { (name(&names.line(oom.line.as_ref()))) }
                    @if let Some(layer) = layer { ", in layer " code { (name(layer)) } }
                }
                li { (size(oom.allocated_bytes)) " allocated and " (size(oom.reserved_bytes)) " reserved by PyTorch" }
                li {
                    (size(oom.free_bytes)) " free in its segments, the largest free block "
                    (size(oom.largest_free_block_bytes))
                }
                @if !oom.used_is_known {
                    li { "the device’s use was not sampled yet: the context and free memory are unknown" }
                } @else if oom.total_bytes > 0 {
                    li {
                        (size(oom.total_bytes.saturating_sub(oom.used_bytes))) " free on the device of "
                        (size(oom.total_bytes))
                    }
                }
                @if let Some(limit) = oom.limit_bytes { li { "a limit of " (size(limit)) " was set for the process" } }
                @if oom.host_bytes > 0 { li { (size(oom.host_bytes)) " of its memory was on the host" } }
            }
            (what_next(names, oom))
            (held(names, oom))
            (stack(names, oom))
        }
    }
}

fn what_next(names: &ReportNames<'_>, oom: &OomView) -> Markup {
    let grows = names.model.device(oom.device).and_then(|device| grows(names.model, &device));
    let advice = advice(names.model, oom, grows.as_ref());
    html! {
        @if !advice.is_empty() {
            h4 { "What to do next" }
            ol.advice { @for text in &advice { li { (cut(text, 600)) } } }
        }
    }
}

/// Three lists side by side: categories, lines, layers.
fn held(names: &ReportNames<'_>, oom: &OomView) -> Markup {
    let mut categories = oom.categories.clone();
    categories.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let category = |category| html! { span.swatch.{ "c" (category_index(category)) } {} (category_names(category).0) };
    let line = |line| html! { (name(&names.line(line))) };
    let layer = |layer: Option<&str>| match layer {
        None => html! { "(outside any layer)" },
        Some("") => html! { "(outermost module)" },
        Some(layer) => html! { (name(layer)) },
    };
    html! {
        h4 { "Largest holders" }
        div.columns {
            (list("by category", categories.iter().map(|(held, bytes)| (category(*held), *bytes))))
            (list("by line", oom.lines.iter().map(|(held, bytes)| (line(held.as_ref()), *bytes))))
            (list("by layer", oom.layers.iter().map(|(held, bytes)| (layer(held.as_deref()), *bytes))))
        }
    }
}

fn list(title: &str, held: impl Iterator<Item = (Markup, u64)>) -> Markup {
    let held: Vec<(Markup, u64)> = held.take(HOLDERS).collect();
    let Some(most) = held.iter().map(|(_, bytes)| *bytes).max() else { return Markup::default() };
    html! {
        table {
            caption { (title) }
            tbody {
                @for (what, bytes) in &held {
                    tr {
                        td.num.heat style=(format!("--h:{:.1}%", share(*bytes, most))) { (size(*bytes)) }
                        td.name { (what) }
                    }
                }
            }
        }
    }
}

fn stack(names: &ReportNames<'_>, oom: &OomView) -> Markup {
    let frames = names.model.frames(oom.stack);
    html! {
        @if !frames.is_empty() {
            details.more {
                summary { "the whole stack, innermost first" }
                ol.stack {
                    @for frame in frames.iter().take(FRAMES) { li { (name(&names.line(Some(frame)))) } }
                    @if frames.len() > FRAMES { li { "… " (frames.len() - FRAMES) " more" } }
                }
            }
        }
    }
}
