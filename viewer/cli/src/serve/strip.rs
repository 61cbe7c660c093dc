//! The list of processes at the top of the page: one row per device of each process.

use maud::{Markup, html};
use memlab_job::median;

use super::figures::{DeviceFigures, Figures, ProcessFigures};
use memlab_base::text::clean;
use memlab_follow::offload::mover::MemoryLocation;
use memlab_follow::offload::operation;
use memlab_follow::snapshot::ProcessState;
use memlab_report::page::elements::{name, share, size};
use memlab_units::format;

/// Draws the list.
///
/// `location`: the location of a process's memory, as the process reports it.
pub fn draw(figures: &Figures, location: impl Fn(u32) -> Option<MemoryLocation>) -> Markup {
    if figures.processes.is_empty() && figures.problems.is_empty() {
        return html! {
            p.empty {
                "No recorded process of yours is running on this machine. Start one with " code { "memlab run -- CMD" }
                ": it appears here when it uses the GPU."
            }
        };
    }
    let (running, ended): (Vec<_>, Vec<_>) = figures.processes.iter().partition(|process| !process.state.is_over());
    let over = html! {
        @if !ended.is_empty() { (table("ended processes", &ended, &location)) }
    };
    html! {
        @if running.is_empty() {
            p.note {
                "No recorded process of yours is running now: programs started with " code { "memlab run -- CMD" }
                " appear here."
            }
            // Without running processes, the ended ones are shown open.
            (over)
        } @else {
            (table("processes", &running, &location))
            (uneven(&running))
            @if !ended.is_empty() {
                details.more { summary { (ended.len()) " ended within the last hour" } (over) }
            }
        }
        @for (pid, problem) in figures.problems.iter().take(8) { p.problem data-pid=(pid) { (name(problem)) } }
        @if figures.left_out > 0 { p.problem { (figures.left_out) " more processes are running, but are not followed" } }
    }
}

fn table(label: &str, processes: &[&ProcessFigures], location: &impl Fn(u32) -> Option<MemoryLocation>) -> Markup {
    html! {
        div.scroll {
            table.processes aria-label=(label) {
                thead {
                    tr {
                        th.num scope="col" { "rank" }
                        th scope="col" { "process" }
                        th.num scope="col" { "pid" }
                        th scope="col" { "device" }
                        th.wide scope="col" { "allocated, reserved, in use" }
                        th.num scope="col" { "allocated" }
                        th.num scope="col" { "peak" }
                        th.num scope="col" { "steps" }
                        th scope="col" { "state" }
                    }
                }
                tbody { @for process in processes { (rows(process, location(process.pid).as_ref())) } }
            }
        }
    }
}

fn rows(process: &ProcessFigures, location: Option<&MemoryLocation>) -> Markup {
    let class = process.state.is_over().then_some("over");
    let rate = process.steps_per_second.filter(|_| process.is_live());
    let row = |device: Option<&DeviceFigures>, is_first: bool| {
        let totals = device.map(|device| &device.totals);
        let bytes = |bytes: Option<u64>| bytes.map_or_else(|| "–".to_owned(), size);
        html! {
            tr class=[class] data-id=(process.id) data-device=(totals.map_or(-1, |totals| totals.index)) {
                td.num { @if is_first { (process.rank.map_or_else(|| "–".to_owned(), |rank| rank.to_string())) } }
                td.who {
                    a href={ "#id=" (process.id) @if let Some(totals) = totals { "&device=" (totals.index) } } {
                        (name(&process.command))
                    }
                }
                td.num { @if is_first { (process.pid) } }
                td {
                    (totals.map_or_else(|| "–".to_owned(), |totals| format!("cuda:{}", totals.index)))
                    @if let Some(card) = device.and_then(|device| device.card.as_ref()) {
                        br;
                        small { (card.facts().join(" · ")) }
                    }
                }
                td { @if let Some(device) = device { (bar(device)) } }
                td.num { (bytes(totals.map(|totals| totals.allocated_bytes))) }
                td.num { (bytes(totals.map(|totals| totals.peak_allocated_bytes))) }
                td.num {
                    @if is_first {
                        (format::grouped(process.steps))
                        @if let Some(rate) = rate { " " small { (format::rate(rate)) "/s" } }
                    }
                }
                td { @if is_first { (state(process, location)) } }
            }
        }
    };
    html! {
        (row(process.devices.first(), true))
        @for device in process.devices.iter().skip(1) { (row(Some(device), false)) }
    }
}

/// Draws allocated, reserved and used memory as shares of the device.
fn bar(device: &DeviceFigures) -> Markup {
    let totals = &device.totals;
    let most = totals.used_bytes.max(totals.reserved_bytes).max(totals.peak_used_bytes);
    let whole = if totals.total_bytes > 0 { totals.total_bytes } else { most };
    let part = |class: &str, bytes: u64| {
        let width = share(bytes, whole).min(100.0);
        html! { i class=(class) style=(format!("width:{width:.1}%")) {} }
    };
    let said = format!(
        "{} allocated, {} reserved, {} in use of {}",
        size(totals.allocated_bytes),
        size(totals.reserved_bytes),
        size(totals.used_bytes),
        size(whole)
    );
    html! {
        span.gauge role="img" aria-label=(said) title=(said) {
            (part("band3", totals.used_bytes))
            (part("band2", totals.reserved_bytes))
            (part("band0", totals.allocated_bytes))
        }
    }
}

fn state(process: &ProcessFigures, location: Option<&MemoryLocation>) -> Markup {
    let moved = location.filter(|_| !process.state.is_over()).and_then(|location| location.moving.as_ref());
    let words = moved.and_then(operation::where_it_is).unwrap_or_else(|| process.state.short());
    let is_bad = matches!(process.state, ProcessState::Killed | ProcessState::Unreadable)
        || matches!(process.state, ProcessState::Ended { code, signal } if signal.is_some() || code.is_some_and(|code| code != 0));
    let bad = is_bad.then_some("bad");
    html! {
        span class=[bad] { (clean(&words)) }
        @if process.ooms > 0 {
            " "
            b.bad { "✖ out of memory" @if process.ooms > 1 { " " (format::grouped(process.ooms)) " times" } }
        }
        @if process.lost_events > 0 { " " b.bad { "events lost" } }
    }
}

/// Names the rank that holds more than the others of its job, in a sentence.
fn uneven(running: &[&ProcessFigures]) -> Markup {
    let mut peaks: Vec<(u64, u32)> = running
        .iter()
        .filter_map(|process| {
            let peak = process.devices.iter().map(|device| device.totals.peak_allocated_bytes).max()?;
            Some((peak, process.rank?))
        })
        .collect();
    peaks.sort_unstable_by_key(|(bytes, rank)| (std::cmp::Reverse(*bytes), *rank));
    let [(most, rank), _, ..] = peaks[..] else { return Markup::default() };
    let count = peaks.len();
    let median = median(peaks.iter().map(|(bytes, _)| *bytes));
    html! {
        p.note {
            // Up to 5 % above the median counts as even.
            @if median == 0 || most - median <= median / 20 {
                "The peaks of " (count) " ranks are even: " (size(median)) " at the median."
            } @else {
                "Rank " (rank) " has the highest peak: " (size(most - median)) " more than the median of " (count)
                " ranks, " (size(median)) ". "
                code { "memlab report" } " on their traces shows the lines and layers in which they differ."
            }
        }
    }
}
