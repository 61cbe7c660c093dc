//! Where the device's memory was: bars and a table that sum to the whole of it.

use std::fmt::Write as _;

use memlab_trace::{Category, CategoryView, DeviceView};

use super::super::names::ReportNames;
use super::super::sections;
use crate::page::elements::{share, size};
use crate::report::bar::whole_of;
use memlab_base::category::{LETTERS, category_index, category_names};
use memlab_base::text::markup;
use memlab_units::format;

/// One moment: what every category held, what was free, and what they sum to.
struct MomentMemory {
    held: Vec<(Category, u64)>,
    /// The part of it in host memory.
    away: u64,
    free: u64,
    whole: u64,
}

impl MomentMemory {
    fn new(device: &DeviceView, views: &[CategoryView], away: u64, bytes: impl Fn(&CategoryView) -> u64) -> Self {
        let held: Vec<(Category, u64)> = views.iter().map(|view| (view.category, bytes(view))).collect();
        let used = held.iter().fold(0_u64, |sum, (_, bytes)| sum.saturating_add(*bytes)).saturating_sub(away);
        // Where the driver did not report the size of the device, the whole is what was in use.
        let whole = device.total_bytes.max(used);
        Self { held, away, free: whole - used, whole }
    }

    /// What is in use by itself, where its parts are too small to see in the whole device: below a third of it.
    fn in_use(&self) -> Option<Self> {
        let whole = self.whole - self.free;
        (whole > 0 && whole < self.whole / 3).then(|| Self { free: 0, whole, held: self.held.clone(), away: self.away })
    }
}

/// The bar of one moment, with the figures below.
pub(super) fn figure_at(device: &DeviceView, held: &[(Category, u64)], away: u64) -> String {
    let used = held.iter().fold(0_u64, |sum, (_, bytes)| sum.saturating_add(*bytes)).saturating_sub(away);
    let whole = device.total_bytes.max(used);
    let then = MomentMemory { held: held.to_vec(), away, free: whole - used, whole };
    let name = |category: Category| named(device, category);
    let mut figure = String::from("<h3>Where the memory was</h3>\n<figure class=\"memory\">\n");
    figure += &bar("then", &then, name);
    figure += &then.in_use().map(|used| bar("in use then", &used, name)).unwrap_or_default();
    figure += "<div class=\"scroll\"><table>\n<thead><tr><th scope=\"col\">category</th><th scope=\"col\" class=\"num\">at the \
               moment</th>";
    let _ = writeln!(figure, "<th scope=\"col\" class=\"num\">% {}</th></tr></thead>\n<tbody>", whole_of(device));
    let row = |swatch: &str, what: &str, bytes: u64| {
        format!(
            "<tr><th scope=\"row\">{swatch}{what}</th><td class=\"num\" data-v=\"{bytes}\">{}</td><td class=\"num\">{}</td></tr>\n",
            size(bytes),
            markup(&format::percent(bytes, whole))
        )
    };
    for (category, bytes) in then.held.iter().filter(|(_, bytes)| *bytes > 0) {
        figure += &row(&swatch(*category), name(*category), *bytes);
    }
    if away > 0 {
        figure += &row("<span class=\"swatch\">−</span>", "of it in host memory", away);
    }
    if then.free > 0 {
        figure += &row("<span class=\"swatch\">.</span>", "free", then.free);
    }
    let what = if device.total_bytes > 0 { "the device’s" } else { "in use" };
    let _ = write!(
        figure,
        "</tbody>\n<tfoot>{}</tfoot>\n</table></div>\n</figure>\n",
        row("<span class=\"swatch\">=</span>", what, whole).trim_end()
    );
    figure
}

fn named(device: &DeviceView, category: Category) -> &'static str {
    match category {
        Category::Context if !device.process_is_known => "context, others",
        category => category_names(category).0,
    }
}

fn swatch(category: Category) -> String {
    let index = category_index(category);
    format!("<span class=\"swatch c{index}\">{}</span>", LETTERS[index])
}

/// The bars at the peak and at the end, with the figures below.
pub(super) fn figure(names: &ReportNames<'_>, device: &DeviceView) -> String {
    let views = names.model.categories(device.index);
    let peak = MomentMemory::new(device, &views, device.host_bytes_at_peak, |view| view.bytes_at_peak);
    let end = MomentMemory::new(device, &views, device.host_bytes, |view| view.bytes);
    let name = |category: Category| named(device, category);
    let mut figure = String::from("<h3>Where the memory was</h3>\n<figure class=\"memory\">\n");
    figure += &bar("at the peak", &peak, name);
    figure += &peak.in_use().map(|used| bar("in use then", &used, name)).unwrap_or_default();
    figure += &bar(names.latest, &end, name);
    let _ = write!(
        figure,
        "<div class=\"beside\"><div class=\"scroll\"><table>\n<thead><tr><th scope=\"col\">category</th><th scope=\"col\" class=\"num\">at the peak</th>\
         <th scope=\"col\" class=\"num\">% {}</th><th scope=\"col\" class=\"num\">{}</th></tr></thead>\n<tbody>\n",
        whole_of(device),
        names.latest
    );
    let mut row = |swatch: String, what: &str, at_peak: u64, at_end: u64| {
        let _ = writeln!(
            figure,
            "<tr><th scope=\"row\">{swatch}{what}</th><td class=\"num\" data-v=\"{at_peak}\">{}</td><td class=\"num\">{}</td>\
             <td class=\"num\" data-v=\"{at_end}\">{}</td></tr>",
            size(at_peak),
            markup(&format::percent(at_peak, peak.whole)),
            size(at_end)
        );
    };
    for ((category, at_peak), (_, at_end)) in std::iter::zip(&peak.held, &end.held) {
        if *at_peak > 0 || *at_end > 0 {
            row(swatch(*category), name(*category), *at_peak, *at_end);
        }
    }
    if peak.away > 0 || end.away > 0 {
        row("<span class=\"swatch\">−</span>".to_owned(), "of it in host memory", peak.away, end.away);
    }
    if peak.free > 0 || end.free > 0 {
        row("<span class=\"swatch\">.</span>".to_owned(), "free", peak.free, end.free);
    }
    let _ = write!(
        figure,
        "</tbody>\n<tfoot><tr><th scope=\"row\"><span class=\"swatch\">=</span>{}</th><td class=\"num\" data-v=\"{}\">{}</td>\
         <td class=\"num\"></td><td class=\"num\" data-v=\"{}\">{}</td></tr></tfoot>\n</table></div>\n<div>",
        if device.total_bytes > 0 { "the device’s" } else { "in use" },
        peak.whole,
        size(peak.whole),
        end.whole,
        size(end.whole)
    );
    if !device.used_is_known {
        figure += "<p class=\"note\">The driver never told the device’s use: the context and other processes are missing.</p>\n";
    } else if !device.process_is_known {
        figure += "<p class=\"note\">The driver does not tell processes apart here: others count as context.</p>\n";
    }
    figure += &fragmentation(names, device);
    figure += "</div></div>\n</figure>\n";
    figure
}

fn bar(when: &str, moment: &MomentMemory, name: impl Fn(Category) -> &'static str) -> String {
    let held: Vec<_> = moment.held.iter().filter(|(_, bytes)| *bytes > 0).collect();
    let mut said: Vec<String> =
        held.iter().map(|(category, bytes)| format!("{} {}", name(*category), size(*bytes))).collect();
    if moment.free > 0 {
        said.push(format!("free {}", size(moment.free)));
    }
    // Memory in host memory may exceed the device.
    let sum = held.iter().fold(moment.free, |sum, (_, bytes)| sum.saturating_add(*bytes));
    let whole = moment.whole.max(sum);
    let mut bar = format!(
        "<div class=\"moment\"><span class=\"when\">{when}</span><div class=\"bar\" role=\"img\" aria-label=\"{when}: {}\">",
        markup(&said.join(", "))
    );
    let mut part = |class: &str, short: &str, letter: &str, said: &str, bytes: u64| {
        let width = share(bytes, whole);
        let label = match width {
            9.0.. => short.to_owned(),
            1.5.. => letter.to_owned(),
            _ => String::new(),
        };
        let _ = write!(
            bar,
            "<span class=\"{class}\" style=\"width:{width:.3}%\" data-b=\"{bytes}\" title=\"{}\">{label}</span>",
            markup(said)
        );
    };
    for (category, bytes) in held {
        let index = category_index(*category);
        let said = format!("{}: {}, {}", name(*category), size(*bytes), format::percent(*bytes, moment.whole));
        part(&format!("c{index}"), category_names(*category).0, LETTERS[index], &said, *bytes);
    }
    if moment.free > 0 {
        let said = format!("free: {}, {}", size(moment.free), format::percent(moment.free, moment.whole));
        part("free", "free", "", &said, moment.free);
    }
    bar += "</div></div>\n";
    bar
}

/// How much of what PyTorch reserves is not handed out.
fn fragmentation(names: &ReportNames<'_>, device: &DeviceView) -> String {
    let lines = sections::fragmentation(names, device);
    let lines: Vec<String> = lines.iter().map(|line| markup(line.trim()).into_owned()).collect();
    if lines.is_empty() { String::new() } else { format!("<p class=\"note\">{}</p>\n", lines.join("<br>")) }
}
