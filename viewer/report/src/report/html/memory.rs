//! Memory of the device: bars and a table that sum to the whole.

use maud::{Markup, html};
use memlab_trace::{Category, CategoryView, DeviceView};

use super::super::names::ReportNames;
use super::super::sections;
use crate::page::elements::{broken, note, share, size, swatch};
use crate::report::bar::SHARE_OF;
use memlab_base::category::{LETTERS, category_index, category_names};
use memlab_units::format;

/// One moment: bytes of every category, free bytes, and their sum.
struct MomentMemory {
    held: Vec<(Category, u64)>,
    /// Part of it in host memory.
    away: u64,
    free: u64,
    whole: u64,
}

impl MomentMemory {
    fn new(device: &DeviceView, views: &[CategoryView], away: u64, bytes: impl Fn(&CategoryView) -> u64) -> Self {
        let held: Vec<(Category, u64)> = views.iter().map(|view| (view.category, bytes(view))).collect();
        let used = held.iter().fold(0_u64, |sum, (_, bytes)| sum.saturating_add(*bytes)).saturating_sub(away);
        // If the driver did not report the size of the device, the whole is the memory in use.
        let whole = device.total_bytes.max(used);
        Self { held, away, free: whole - used, whole }
    }

    /// Sum of the categories.
    fn sum(&self) -> u64 {
        self.held.iter().fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }

    /// Memory in use alone, if it is below a third of the device: its parts would be too small to see.
    fn in_use(&self) -> Option<Self> {
        let whole = self.whole - self.free;
        (whole > 0 && whole < self.whole / 3).then(|| Self { free: 0, whole, held: self.held.clone(), away: self.away })
    }
}

/// Bar of one moment, with the figures below.
pub(super) fn figure_at(device: &DeviceView, held: &[(Category, u64)], away: u64) -> Markup {
    let used = held.iter().fold(0_u64, |sum, (_, bytes)| sum.saturating_add(*bytes)).saturating_sub(away);
    let whole = device.total_bytes.max(used);
    let then = MomentMemory { held: held.to_vec(), away, free: whole - used, whole };
    html! {
        h3 { "Memory by category" }
        figure.memory { (bars(device, "then", &then)) (figures(device, &["at the moment"], &[&then])) }
    }
}

/// Bars at the peak and at the end, with the figures below.
pub(super) fn figure(names: &ReportNames<'_>, device: &DeviceView) -> Markup {
    let views = names.model.categories(device.index);
    let peak = MomentMemory::new(device, &views, device.host_bytes_at_peak, |view| view.bytes_at_peak);
    let end = MomentMemory::new(device, &views, device.host_bytes, |view| view.bytes);
    let fragmentation = sections::fragmentation(names, device);
    html! {
        h3 { "Memory by category" }
        figure.memory {
            (bars(device, "at the peak", &peak))
            (bar(device, names.latest, &end))
            div.beside {
                (figures(device, &["at the peak", names.latest], &[&peak, &end]))
                div {
                    @if !device.used_is_known {
                        (note("The driver did not report the device’s use: the context and other processes are missing."))
                    } @else if !device.process_is_known {
                        (note("The driver does not separate processes here: others count as context."))
                    }
                    // Unallocated reserved memory.
                    @if !fragmentation.is_empty() {
                        p.note { (broken(&fragmentation)) }
                    }
                }
            }
        }
    }
}

/// Table of categories at one or more moments; the first also has shares of the whole.
fn figures(device: &DeviceView, whens: &[&str], moments: &[&MomentMemory]) -> Markup {
    let row = |what: Markup, share: bool, bytes: &dyn Fn(&MomentMemory) -> u64| {
        html! {
            tr {
                th scope="row" { (what) }
                @for (index, moment) in moments.iter().enumerate() {
                    td.num data-v=(bytes(moment)) { (size(bytes(moment))) }
                    @if index == 0 {
                        td.num { @if share { (format::percent(bytes(moment), moment.sum())) } }
                    }
                }
            }
        }
    };
    let sign = |sign: &str, what: &str| html! { span.swatch { (sign) } (what) };
    let any = |bytes: &dyn Fn(&MomentMemory) -> u64| moments.iter().any(|moment| bytes(moment) > 0);
    html! {
        div.scroll tabindex="0" {
            table {
                thead {
                    tr {
                        th scope="col" { "category" }
                        @for (index, when) in whens.iter().enumerate() {
                            th.num scope="col" { (when) }
                            @if index == 0 { th.num scope="col" { "%" (SHARE_OF) } }
                        }
                    }
                }
                tbody {
                    @for (index, (category, _)) in moments[0].held.iter().enumerate() {
                        @let held = |moment: &MomentMemory| moment.held[index].1;
                        @if any(&held) { (row(html! { (swatch(*category)) (named(device, *category)) }, true, &held)) }
                    }
                    @if any(&|moment| moment.away) {
                        (row(sign("−", "of it in host memory"), false, &|moment| moment.away))
                    }
                }
                tfoot {
                    (row(sign("=", "in use"), false, &|moment| moment.whole - moment.free))
                    @if device.total_bytes > 0 { (row(sign(".", "free on the device"), false, &|moment| moment.free)) }
                }
            }
        }
    }
}

fn named(device: &DeviceView, category: Category) -> &'static str {
    match category {
        Category::Context if !device.process_is_known => "context, others",
        category => category_names(category).0,
    }
}

/// Bar of a moment, and a second bar for small memory in use.
fn bars(device: &DeviceView, when: &str, moment: &MomentMemory) -> Markup {
    html! {
        (bar(device, when, moment))
        @if let Some(used) = moment.in_use() { (bar(device, "in use then", &used)) }
    }
}

fn bar(device: &DeviceView, when: &str, moment: &MomentMemory) -> Markup {
    let held: Vec<_> = moment.held.iter().filter(|(_, bytes)| *bytes > 0).collect();
    let mut label: Vec<String> =
        held.iter().map(|(category, bytes)| format!("{} {}", named(device, *category), size(*bytes))).collect();
    if moment.free > 0 {
        label.push(format!("free {}", size(moment.free)));
    }
    // Memory on the host may exceed the device.
    let sum = held.iter().fold(moment.free, |sum, (_, bytes)| sum.saturating_add(*bytes));
    let whole = moment.whole.max(sum);
    let part = |class: &str, (short, letter): (&str, &str), name: &str, bytes: u64| {
        let width = share(bytes, whole);
        let label = match width {
            9.0.. => short,
            1.5.. => letter,
            _ => "",
        };
        let tooltip = format!("{name}: {}", size(bytes));
        html! { span class=(class) style=(format!("width:{width:.3}%")) data-b=(bytes) title=(tooltip) { (label) } }
    };
    html! {
        div.moment {
            span.when { (when) }
            div.bar role="img" aria-label={ (when) ": " (label.join(", ")) } {
                @for (category, bytes) in held {
                    @let index = category_index(*category);
                    @let short = category_names(*category).0;
                    (part(&format!("c{index}"), (short, LETTERS[index]), named(device, *category), *bytes))
                }
                @if moment.free > 0 { (part("free", ("free", ""), "free", moment.free)) }
            }
        }
    }
}
