//! Out of memory: what was asked for, who held what at that moment, and what to do next.

use std::fmt::Write as _;

use memlab_trace::{DeviceView, OomView};

use super::super::names::ReportNames;
use crate::page::elements::{name, plural, share, size};
use memlab_base::category::{category_index, category_names};
use memlab_base::findings::{advice::advice, grows};
use memlab_base::text::markup;
use memlab_units::format;

/// How many are shown in full.
const OOMS: usize = 3;

/// How many of who held most are listed of each.
const HOLDERS: usize = 8;

/// The deepest stack listed.
const FRAMES: usize = 60;

/// The out-of-memory event of a device that happened then, if one did.
pub(super) fn at(names: &ReportNames<'_>, device: &DeviceView, time: u64) -> String {
    let ooms = names.model.ooms();
    let then = ooms.iter().find(|oom| oom.device == device.index && oom.time == time);
    then.map(|oom| article(names, oom)).unwrap_or_default()
}

/// The out-of-memory events of a device.
pub(super) fn section(names: &ReportNames<'_>, device: &DeviceView) -> String {
    let ooms: Vec<OomView> = names.model.ooms().into_iter().filter(|oom| oom.device == device.index).collect();
    let mut section: String = ooms.iter().take(OOMS).map(|oom| article(names, oom)).collect();
    if ooms.len() > OOMS {
        let more = plural((ooms.len() - OOMS) as u64, "more out-of-memory error");
        let _ = writeln!(section, "<p class=\"note\">{more}: see --json.</p>");
    }
    section
}

fn article(names: &ReportNames<'_>, oom: &OomView) -> String {
    let mut article = format!(
        "<article class=\"oom\">\n<h3>✖ Out of memory after {}: {} asked for</h3>\n<ul>\n<li>by <code>{}</code>",
        format::duration(oom.time),
        size(oom.requested_bytes),
        name(&names.line(oom.line.as_ref()))
    );
    if let Some(layer) = oom.layer.as_deref().filter(|layer| !layer.is_empty()) {
        let _ = write!(article, ", in layer <code>{}</code>", name(layer));
    }
    let _ = write!(
        article,
        "</li>\n<li>{} allocated and {} reserved by PyTorch</li>\n<li>{} free in its segments, the largest free block {}</li>\n",
        size(oom.allocated_bytes),
        size(oom.reserved_bytes),
        size(oom.free_bytes),
        size(oom.largest_free_block_bytes)
    );
    if !oom.used_is_known {
        article +=
            "<li>the device’s own figure was not sampled yet: the context and what was free are not known</li>\n";
    } else if oom.total_bytes > 0 {
        let free = oom.total_bytes.saturating_sub(oom.used_bytes);
        let _ = writeln!(article, "<li>{} free on the device of {}</li>", size(free), size(oom.total_bytes));
    }
    if let Some(limit) = oom.limit_bytes {
        let _ = writeln!(article, "<li>a limit of {} was set for the process</li>", size(limit));
    }
    if oom.host_bytes > 0 {
        let _ = writeln!(article, "<li>{} of its memory lay on the host</li>", size(oom.host_bytes));
    }
    article += "</ul>\n";
    article += &what_next(names, oom);
    article += &held(names, oom);
    article += &stack(names, oom);
    article += "</article>\n";
    article
}

fn what_next(names: &ReportNames<'_>, oom: &OomView) -> String {
    let grows = names.model.device(oom.device).and_then(|device| grows(names.model, &device));
    let advice = advice(oom, grows.as_ref());
    if advice.is_empty() {
        return String::new();
    }
    let items: String = advice
        .iter()
        .map(|text| format!("<li>{}</li>\n", markup(&memlab_base::text::fit_end(text, 600, "…"))))
        .collect();
    format!("<h4>What to do next</h4>\n<ol class=\"advice\">\n{items}</ol>\n")
}

/// Three lists side by side: categories, lines, layers.
fn held(names: &ReportNames<'_>, oom: &OomView) -> String {
    let mut categories = oom.categories.clone();
    categories.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let categories = categories.iter().map(|(category, bytes)| {
        let what =
            format!("<span class=\"swatch c{}\"></span>{}", category_index(*category), category_names(*category).0);
        (what, *bytes)
    });
    let lines = oom.lines.iter().map(|(line, bytes)| (name(&names.line(line.as_ref())), *bytes));
    let layers = oom.layers.iter().map(|(layer, bytes)| {
        let what = match layer.as_deref() {
            None => "(outside any layer)".to_owned(),
            Some("") => "(outermost module)".to_owned(),
            Some(layer) => name(layer),
        };
        (what, *bytes)
    });
    let lists = [list("by category", categories), list("by line", lines), list("by layer", layers)];
    format!("<h4>Who held what</h4>\n<div class=\"columns\">\n{}</div>\n", lists.concat())
}

fn list(title: &str, held: impl Iterator<Item = (String, u64)>) -> String {
    let held: Vec<(String, u64)> = held.take(HOLDERS).collect();
    let Some(most) = held.iter().map(|(_, bytes)| *bytes).max() else { return String::new() };
    let row = |(what, bytes): &(String, u64)| {
        format!(
            "<tr><td class=\"num heat\" style=\"--h:{:.1}%\">{}</td><td class=\"name\">{what}</td></tr>\n",
            share(*bytes, most),
            size(*bytes)
        )
    };
    format!("<table><caption>{title}</caption><tbody>\n{}</tbody></table>\n", held.iter().map(row).collect::<String>())
}

fn stack(names: &ReportNames<'_>, oom: &OomView) -> String {
    let frames = names.model.frames(oom.stack);
    if frames.is_empty() {
        return String::new();
    }
    let mut items: String =
        frames.iter().take(FRAMES).map(|frame| format!("<li>{}</li>\n", name(&names.line(Some(frame))))).collect();
    if frames.len() > FRAMES {
        let _ = writeln!(items, "<li>… {} more</li>", frames.len() - FRAMES);
    }
    format!(
        "<details class=\"more\"><summary>the whole stack, innermost first</summary><ol class=\"stack\">\n{items}</ol></details>\n"
    )
}
