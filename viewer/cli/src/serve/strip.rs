//! The list of processes at the top of the page: a row for each device of each.

use std::fmt::Write as _;

use memlab_job::median;

use super::figures::{DeviceFigures, Figures, ProcessFigures};
use memlab_base::text::markup;
use memlab_follow::offload::mover::MemoryLocation;
use memlab_follow::offload::operation;
use memlab_follow::snapshot::ProcessState;
use memlab_report::page::elements::{name, share, size};
use memlab_units::format;

/// Draws it. `location`: where a process's memory is, by its own word.
pub fn draw(figures: &Figures, location: impl Fn(u32) -> Option<MemoryLocation>) -> String {
    let mut html = String::new();
    if figures.processes.is_empty() && figures.problems.is_empty() {
        return "<p class=\"empty\">No traced process of yours is running on this machine. Start one with <code>memlab run -- \
                CMD</code>: it appears here as soon as it uses the GPU.</p>\n"
            .to_owned();
    }
    let (running, ended): (Vec<_>, Vec<_>) = figures.processes.iter().partition(|process| !process.state.is_over());
    if running.is_empty() {
        html += "<p class=\"note\">No traced process of yours is running now: one that is started with <code>memlab run -- CMD</code> \
                 appears here.</p>\n";
    } else {
        table(&mut html, "processes", &running, &location);
        html += &uneven(&running);
    }
    match ended.len() {
        0 => {}
        // What is worth a look need not be opened first.
        _ if running.is_empty() => table(&mut html, "processes that have ended", &ended, &location),
        count => {
            let _ = writeln!(html, "<details class=\"more\"><summary>{count} ended within the last hour</summary>");
            table(&mut html, "processes that have ended", &ended, &location);
            html += "</details>\n";
        }
    }
    for (pid, problem) in figures.problems.iter().take(8) {
        let _ = writeln!(html, "<p class=\"problem\" data-pid=\"{pid}\">{}</p>", name(problem));
    }
    if figures.left_out > 0 {
        let _ =
            writeln!(html, "<p class=\"problem\">{} more processes run: they are not followed</p>", figures.left_out);
    }
    html
}

fn table(
    html: &mut String,
    label: &str,
    processes: &[&ProcessFigures],
    location: &impl Fn(u32) -> Option<MemoryLocation>,
) {
    let _ = writeln!(
        html,
        "<div class=\"scroll\"><table class=\"processes\" aria-label=\"{label}\">\n<thead><tr><th scope=\"col\" class=\"num\">rank</th>\
         <th scope=\"col\">process</th><th scope=\"col\" class=\"num\">pid</th><th scope=\"col\">device</th><th scope=\"col\" \
         class=\"wide\">allocated, reserved, in use</th><th scope=\"col\" class=\"num\">allocated</th><th scope=\"col\" \
         class=\"num\">peak</th><th scope=\"col\" class=\"num\">steps</th><th scope=\"col\">state</th></tr></thead>\n<tbody>"
    );
    for process in processes {
        rows(html, process, location(process.pid).as_ref());
    }
    *html += "</tbody></table></div>\n";
}

fn rows(html: &mut String, process: &ProcessFigures, location: Option<&MemoryLocation>) {
    let state = state(process, location);
    let class = if process.state.is_over() { " class=\"over\"" } else { "" };
    let rank = process.rank.map_or_else(|| "–".to_owned(), |rank| rank.to_string());
    let mut row = |device: Option<&DeviceFigures>, is_first: bool| {
        let once = |text: String| if is_first { text } else { String::new() };
        let link = format!(
            "#id={}{}",
            process.id,
            device.map_or_else(String::new, |device| format!("&amp;device={}", device.totals.index))
        );
        let who = format!("<a href=\"{link}\">{}</a>", name(&process.command));
        let [on, bar, allocated, peak] = match device {
            Some(device) => [
                format!("cuda:{}", device.totals.index),
                bar(device),
                size(device.totals.allocated_bytes),
                size(device.totals.peak_allocated_bytes),
            ],
            None => ["–", "", "–", "–"].map(str::to_owned),
        };
        let rate = process.steps_per_second.filter(|_| process.is_live());
        let steps = format!(
            "{}{}",
            format::grouped(process.steps),
            rate.map(|rate| format!(" <small>{}/s</small>", format::rate(rate))).unwrap_or_default()
        );
        let _ = writeln!(
            html,
            "<tr{class} data-id=\"{}\" data-device=\"{}\"><td class=\"num\">{}</td><td class=\"who\">{who}</td><td class=\"num\">{}</td><td>{on}</td><td>{bar}</td>\
             <td class=\"num\">{allocated}</td><td class=\"num\">{peak}</td><td class=\"num\">{}</td><td>{}</td></tr>",
            process.id,
            device.map_or(-1, |device| device.totals.index),
            once(rank.clone()),
            once(process.pid.to_string()),
            once(steps),
            once(state.clone()),
        );
    };
    match process.devices.split_first() {
        None => row(None, true),
        Some((first, others)) => {
            row(Some(first), true);
            others.iter().for_each(|device| row(Some(device), false));
        }
    }
}

/// What is allocated, reserved and in use, as shares of the device.
fn bar(device: &DeviceFigures) -> String {
    let totals = &device.totals;
    let most = totals.used_bytes.max(totals.reserved_bytes).max(totals.peak_used_bytes);
    let whole = if totals.total_bytes > 0 { totals.total_bytes } else { most };
    let part = |class: &str, bytes: u64| {
        format!("<i class=\"{class}\" style=\"width:{:.1}%\"></i>", share(bytes, whole).min(100.0))
    };
    let said = format!(
        "{} allocated, {} reserved, {} in use of {}",
        size(totals.allocated_bytes),
        size(totals.reserved_bytes),
        size(totals.used_bytes),
        size(whole)
    );
    format!(
        "<span class=\"gauge\" role=\"img\" aria-label=\"{said}\" title=\"{said}\">{}{}{}</span>",
        part("band3", totals.used_bytes),
        part("band2", totals.reserved_bytes),
        part("band0", totals.allocated_bytes),
    )
}

fn state(process: &ProcessFigures, location: Option<&MemoryLocation>) -> String {
    let moved = location.filter(|_| !process.state.is_over()).and_then(|location| location.moving.as_ref());
    let words = moved.and_then(operation::where_it_is).unwrap_or_else(|| process.state.short());
    let is_bad = matches!(process.state, ProcessState::Killed | ProcessState::Unreadable)
        || matches!(process.state, ProcessState::Ended { code, signal } if signal.is_some() || code.is_some_and(|code| code != 0));
    let oom = match process.ooms {
        0 => String::new(),
        1 => " <b class=\"bad\">✖ out of memory</b>".to_owned(),
        times => format!(" <b class=\"bad\">✖ out of memory {} times</b>", format::grouped(times)),
    };
    let lost = if process.lost_events > 0 { " <b class=\"bad\">events lost</b>" } else { "" };
    format!("<span{}>{}</span>{oom}{lost}", if is_bad { " class=\"bad\"" } else { "" }, markup(&words))
}

/// Who holds more than the others of its job, in a sentence.
fn uneven(running: &[&ProcessFigures]) -> String {
    let mut peaks: Vec<(u64, u32)> = running
        .iter()
        .filter_map(|process| {
            let peak = process.devices.iter().map(|device| device.totals.peak_allocated_bytes).max()?;
            Some((peak, process.rank?))
        })
        .collect();
    peaks.sort_unstable_by_key(|(bytes, rank)| (std::cmp::Reverse(*bytes), *rank));
    let [(most, rank), _, ..] = peaks[..] else { return String::new() };
    let count = peaks.len();
    let median = median(peaks.iter().map(|(bytes, _)| *bytes));
    // A twentieth more is as good as even.
    if median == 0 || most - median <= median / 20 {
        return format!("<p class=\"note\">The peaks of {count} ranks are even: {} at the median.</p>\n", size(median));
    }
    format!(
        "<p class=\"note\">Rank {rank} has the highest peak: {} more than the median of {count} ranks, {}. <code>memlab report</code> \
         on their traces says in which lines and layers they differ.</p>\n",
        size(most - median),
        size(median)
    )
}
