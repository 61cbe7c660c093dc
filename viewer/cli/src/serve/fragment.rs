//! The parts of the page about one process, drawn on request.

use std::fmt::Write as _;
use std::path::Path;

use maud::{Markup, html};
use memlab_trace::{Model, SeekTarget, StepView};
use serde::Serialize;

use super::figures::id_of;
use memlab_base::moment::{self, NamedMoment};
use memlab_base::text::{clean, missing_events, short_command};
use memlab_follow::feed::Followed;
use memlab_follow::snapshot::ProcessState;
use memlab_report::page::elements::{cut, facts, note, plural, short_name};
pub use memlab_report::report::live::{self, PagePart, Shown};
use memlab_units::format;

/// A page's request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FragmentRequest {
    /// Process, as in [`ProcessFigures::id`](super::figures::ProcessFigures::id).
    pub id: String,
    /// Device; `None`: the one with the highest peak.
    pub device: Option<i32>,
    /// Part of the page.
    pub part: PagePart,
    /// The moment, as the user typed it; `None`: the latest.
    pub at: Option<String>,
}

/// Pieces of HTML, each with its place on the page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fragment {
    /// Version of the process, see [`ProcessFigures::version`](super::figures::ProcessFigures::version).
    pub version: String,
    /// The shown device.
    pub device: i32,
    /// Places and their content.
    pub places: Vec<(&'static str, String)>,
}

/// Draws the requested part.
///
/// # Errors
///
/// If the process, device or moment does not exist; returns the message for the user.
pub fn draw(followed: &mut [Followed], request: &FragmentRequest) -> Result<Fragment, String> {
    let Some(followed) = followed.iter_mut().find(|followed| id_of(followed.model()) == request.id) else {
        return Err("this process is no longer listed: choose another one".to_owned());
    };
    followed.set_scope(None);
    let (path, state) = (followed.path().to_owned(), followed.state());
    let version = format!("{} {}", followed.model().events(), state.short());
    let failure = followed.failure().map(str::to_owned);
    let device = match moment::device_of(&path, followed.model(), request.device) {
        Ok(device) => device.index,
        Err(_) => {
            let places = [
                ("head", head(followed.model(), state, &path, failure.as_deref())),
                ("findings", Markup::default()),
                ("moment", Markup::default()),
                ("figures", Markup::default()),
                ("chart", Markup::default()),
                ("part", note("No GPU memory allocated yet.")),
            ];
            let places = places.map(|(place, html)| (place, html.into_string())).into();
            return Ok(Fragment { version, device: 0, places });
        }
    };
    let at = match &request.at {
        None => None,
        Some(typed) => Some(target(&path, followed.model(), typed, device)?),
    };
    let note = match at {
        Some(at) => match followed.seek_past(at) {
            Some(true) => None,
            Some(false) => Some("the trace no longer has that moment; shown is its earliest"),
            None => return Err(followed.failure().unwrap_or("the trace cannot be read").to_owned()),
        },
        None => None,
    };
    let (run, then) = followed.models();
    let latest = if state.is_over() { "at the end" } else { "now" };
    let shown = Shown { run, then: at.and(then), latest };
    let places = [
        ("head", head(run, state, &path, failure.as_deref())),
        ("findings", live::findings(run)),
        ("moment", moments(shown, device, request, note)),
        ("figures", live::figures(shown, device)),
        ("chart", live::chart(shown, device)),
        ("part", live::part(shown, device, request.part)),
    ];
    let places = places.map(|(place, html)| (place, html.into_string())).into();
    Ok(Fragment { version, device, places })
}

/// Returns the position of a typed moment.
fn target(path: &Path, model: &Model, typed: &str, device: i32) -> Result<SeekTarget, String> {
    let moment: NamedMoment = typed.parse()?;
    moment::find(path, model, moment, Some(device)).map_err(|error| {
        let message = error.to_string();
        let file = format!("{}: ", path.display());
        message.strip_prefix(&file).unwrap_or(&message).to_owned()
    })
}

/// Draws the process's identity and state.
fn head(model: &Model, state: ProcessState, path: &Path, failure: Option<&str>) -> Markup {
    let header = model.header().cloned().unwrap_or_default();
    let mut said = vec![format!("pid {}", header.pid)];
    match (header.rank, header.world_size) {
        (Some(rank), Some(size)) => said.push(format!("rank {rank} of {size}")),
        (Some(rank), None) => said.push(format!("rank {rank}")),
        (None, _) => {}
    }
    said.push(state.short());
    if header.start_unix_ns > 0 {
        said.push(format!("since {}", format::date(header.start_unix_ns)));
    }
    if model.steps_ended() > 0 {
        said.push(plural(model.steps_ended(), "step"));
    }
    if let Some(rate) = memlab_follow::snapshot::steps_per_second(model.steps()) {
        said.push(format!("{} steps/s", format::rate(rate)));
    }
    said.extend(model.software().iter().take(4).map(|software| format!("{} {}", software.software, software.version)));
    said.push(plural(model.events(), "event"));
    said.extend(missing_events(model.lost_events()));
    said.push(path.display().to_string());
    html! {
        h1 title=(cut(&header.command.join(" "), 1000)) { (cut(&short_command(&header.command), 200)) }
        (facts(&said))
        @if let Some(why) = failure { p.problem { (clean(why)) } }
    }
}

/// Draws the devices, the shown moment, and links to other moments.
fn moments(shown: Shown<'_>, index: i32, request: &FragmentRequest, note: Option<&str>) -> Markup {
    let devices = shown.run.devices();
    let wished = request.at.as_deref().unwrap_or_default();
    let button = |at: &str, label: &str, title: &str| {
        // Step buttons are relative to the shown moment, so they are never the shown one.
        let is_shown = at == wished && !at.starts_with("step:");
        html! { button type="button" data-at=(at) aria-pressed=(is_shown) title=(title) { (label) } }
    };
    let live = if shown.latest == "now" { "● now" } else { "the end" };
    let (before, after) = around(shown.run.device_steps(index), shown.then.map_or(u64::MAX, Model::time));
    let mut said = String::new();
    if let Some(then) = shown.then {
        said = format!("shown: {}", format::duration(then.time()));
        if shown.run.steps_ended() > 0 {
            let _ = write!(said, ", {}", format::step_during(then.steps_ended(), shown.run.steps_ended()));
        }
        if let Some(note) = note {
            let _ = write!(said, " ({note})");
        }
    }
    html! {
        @if devices.len() > 1 {
            span.devices role="group" aria-label="device" {
                @for device in devices.iter().take(16) {
                    button type="button" data-device=(device.index) aria-pressed=(device.index == index) {
                        (short_name(device))
                    }
                }
            }
        }
        (button("", live, "the latest state; follows the run (Esc)"))
        (button("peak", "▼ peak", "the peak of allocated memory"))
        @if let Some(step) = before {
            (button(&format!("step:{}", step.index), "◀ step", "the end of the previous step ([)"))
        }
        @if let Some(step) = after {
            (button(&format!("step:{}", step.index), "step ▶", "the end of the next step (])"))
        }
        @for (number, oom) in (1..).zip(shown.run.ooms()).take(4) {
            @let which = if number > 1 { format!(" {number}") } else { String::new() };
            @let title = format!("out of memory after {}", format::duration(oom.time));
            (button(&format!("oom:{number}"), &format!("✖ out of memory{which}"), &title))
        }
        span.shown { (clean(&said)) }
    }
}

/// Returns the last step that ended before a time, and the first that ended after it.
fn around(steps: &[StepView], time: u64) -> (Option<&StepView>, Option<&StepView>) {
    let before = steps.partition_point(|step| step.end_time < time);
    let after = steps.partition_point(|step| step.end_time <= time);
    (before.checked_sub(1).and_then(|index| steps.get(index)), steps.get(after))
}
