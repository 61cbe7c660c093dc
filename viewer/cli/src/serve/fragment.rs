//! The parts of the page about one process, drawn on request.

use std::fmt::Write as _;
use std::path::Path;

use memlab_trace::{Model, SeekTarget, StepView};
use serde::Serialize;

use super::figures::id_of;
use memlab_base::moment::{self, NamedMoment};
use memlab_base::text::{fit_end, markup, missing_events, short_command};
use memlab_follow::feed::Followed;
use memlab_follow::snapshot::ProcessState;
use memlab_report::page::elements::{name, plural, short_name};
pub use memlab_report::report::live::{self, PagePart, Shown};
use memlab_units::format;

/// What a page wants to show.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FragmentRequest {
    /// Which process, as in [`ProcessFigures::id`](super::figures::ProcessFigures::id).
    pub id: String,
    /// Which device; `None`: the one with the highest peak.
    pub device: Option<i32>,
    /// Which part.
    pub part: PagePart,
    /// The moment, as it is typed; `None`: the latest.
    pub at: Option<String>,
}

/// What is shown: pieces of HTML, each in its place on the page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fragment {
    /// The process's version, see [`ProcessFigures::version`](super::figures::ProcessFigures::version).
    pub version: String,
    /// The device that is shown.
    pub device: i32,
    /// The places and what goes there.
    pub places: Vec<(&'static str, String)>,
}

/// Draws what is wished for.
///
/// # Errors
///
/// If there is no such process, device or moment: in words.
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
            let places = vec![
                ("head", head(followed.model(), state, &path, failure.as_deref())),
                ("findings", String::new()),
                ("moment", String::new()),
                ("figures", String::new()),
                ("chart", String::new()),
                ("part", "<p class=\"note\">It has allocated no GPU memory yet.</p>".to_owned()),
            ];
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
            Some(false) => Some("the trace no longer has that moment: this is the earliest it has"),
            None => return Err(followed.failure().unwrap_or("the trace cannot be read").to_owned()),
        },
        None => None,
    };
    let (run, then) = followed.models();
    let latest = if state.is_over() { "at the end" } else { "now" };
    let shown = Shown { run, then: at.and(then), latest };
    let places = vec![
        ("head", head(run, state, &path, failure.as_deref())),
        ("findings", live::findings(run)),
        ("moment", moments(shown, device, request, note)),
        ("figures", live::figures(shown, device)),
        ("chart", live::chart(shown, device)),
        ("part", live::part(shown, device, request.part)),
    ];
    Ok(Fragment { version, device, places })
}

/// Where a typed moment is.
fn target(path: &Path, model: &Model, typed: &str, device: i32) -> Result<SeekTarget, String> {
    let moment: NamedMoment = typed.parse()?;
    moment::find(path, model, moment, Some(device)).map_err(|error| {
        let message = error.to_string();
        let file = format!("{}: ", path.display());
        message.strip_prefix(&file).unwrap_or(&message).to_owned()
    })
}

/// Which process it is, and how it is.
fn head(model: &Model, state: ProcessState, path: &Path, failure: Option<&str>) -> String {
    let header = model.header().cloned().unwrap_or_default();
    let whole: Vec<&str> = header.command.iter().map(String::as_str).collect();
    let mut facts = vec![format!("pid {}", header.pid)];
    match (header.rank, header.world_size) {
        (Some(rank), Some(size)) => facts.push(format!("rank {rank} of {size}")),
        (Some(rank), None) => facts.push(format!("rank {rank}")),
        (None, _) => {}
    }
    facts.push(state.short());
    if header.start_unix_ns > 0 {
        facts.push(format!("since {}", format::date(header.start_unix_ns)));
    }
    if model.steps_ended() > 0 {
        facts.push(plural(model.steps_ended(), "step"));
    }
    if let Some(rate) = memlab_follow::snapshot::steps_per_second(model.steps()) {
        facts.push(format!("{} steps/s", format::rate(rate)));
    }
    facts.extend(model.software().iter().take(4).map(|software| format!("{} {}", software.software, software.version)));
    facts.push(plural(model.events(), "event"));
    facts.extend(missing_events(model.lost_events()));
    facts.push(path.display().to_string());
    let facts: String = facts.iter().map(|fact| format!("<li>{}</li>", name(fact))).collect();
    let failure = failure.map(|why| format!("<p class=\"problem\">{}</p>", markup(why))).unwrap_or_default();
    format!(
        "<h1 title=\"{}\">{}</h1>\n<ul class=\"facts\">{facts}</ul>\n{failure}",
        markup(&fit_end(&whole.join(" "), 1000, "…")),
        markup(&fit_end(&short_command(&header.command), 200, "…")),
    )
}

/// The devices, the moment that is shown, and those to go to.
fn moments(shown: Shown<'_>, index: i32, request: &FragmentRequest, note: Option<&str>) -> String {
    let mut html = String::new();
    let devices = shown.run.devices();
    if devices.len() > 1 {
        html += "<span class=\"devices\" role=\"group\" aria-label=\"device\">";
        for device in devices.iter().take(16) {
            let pressed = device.index == index;
            let _ = write!(
                html,
                "<button type=\"button\" data-device=\"{}\" aria-pressed=\"{pressed}\">{}</button>",
                device.index,
                short_name(device)
            );
        }
        html += "</span>\n";
    }
    let mut button = |at: &str, label: &str, title: &str, is_shown: bool| {
        let _ = writeln!(
            html,
            "<button type=\"button\" data-at=\"{at}\" aria-pressed=\"{is_shown}\" title=\"{title}\">{label}</button>"
        );
    };
    let live = if shown.latest == "now" { "● now" } else { "the end" };
    button("", live, "the latest state, which follows the run (Esc)", request.at.is_none());
    button("peak", "▼ peak", "when most was allocated", request.at.as_deref() == Some("peak"));
    let steps = shown.run.device_steps(index);
    let time = shown.then.map_or(u64::MAX, Model::time);
    let (before, after) = around(steps, time);
    if let Some(step) = before {
        button(&format!("step:{}", step.index), "◀ step", "the end of the step before ([)", false);
    }
    if let Some(step) = after {
        button(&format!("step:{}", step.index), "step ▶", "the end of the step after (])", false);
    }
    for (number, oom) in shown.run.ooms().iter().enumerate().take(4) {
        let at = format!("oom:{}", number + 1);
        let is_shown = request.at.as_deref() == Some(&at);
        let title = format!("out of memory after {}", format::duration(oom.time));
        button(
            &at,
            &format!("✖ out of memory{}", if number > 0 { format!(" {}", number + 1) } else { String::new() }),
            &title,
            is_shown,
        );
    }
    let said = match shown.then {
        None => String::new(),
        Some(then) => {
            let mut said = format!("shown: after {}", format::duration(then.time()));
            if shown.run.steps_ended() > 0 {
                let _ = write!(said, ", {}", format::step_reached(then.steps_ended()));
            }
            if let Some(note) = note {
                let _ = write!(said, " ({note})");
            }
            said
        }
    };
    format!("{html}<span class=\"shown\">{}</span>\n", markup(&said))
}

/// The last step that ended before a time, and the first that ended after it.
fn around(steps: &[StepView], time: u64) -> (Option<&StepView>, Option<&StepView>) {
    let before = steps.partition_point(|step| step.end_time < time);
    let after = steps.partition_point(|step| step.end_time <= time);
    (before.checked_sub(1).and_then(|index| steps.get(index)), steps.get(after))
}
