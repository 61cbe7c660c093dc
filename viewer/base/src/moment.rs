//! Moments of a run by name, `peak`, `end`, `oom:2`, `step:12`, `1m30s`, and the state of the run at one.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use memlab_trace::{
    DeviceView, Model, Observer, OomView, ReadSummary, ResolvedSnapshot, Scope, SeekTarget, SnapshotReplay, StepView,
    load_whole, read_whole,
};
use memlab_units::format;

use crate::error::bad_input;
use crate::progress;

/// A moment of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NamedMoment {
    /// The moment of most allocated memory.
    #[default]
    Peak,
    /// The end of the trace.
    End,
    /// An out-of-memory error, counted from 1.
    Oom(u64),
    /// The end of an optimizer step, counted from 0.
    Step(u64),
    /// Nanoseconds since the trace's start.
    Time(u64),
}

/// Syntax of moments, for error messages.
const FORMS: &str = "a moment is peak, end, oom, oom:2, step:12 or a time: 12.5s, 850ms, 1m30s, 1:30";

impl FromStr for NamedMoment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let number = |digits: &str, least: u64| {
            digits.parse().ok().filter(|number| *number >= least).ok_or_else(|| match least {
                0 => format!("'{digits}' is not a step number; the first is step:0"),
                _ => format!("'{digits}' is not an out-of-memory number; the first is oom:1"),
            })
        };
        match text.split_once(':') {
            Some(("oom", digits)) => return number(digits, 1).map(Self::Oom),
            Some(("step", digits)) => return number(digits, 0).map(Self::Step),
            _ => {}
        }
        match text {
            "peak" => Ok(Self::Peak),
            "end" => Ok(Self::End),
            "oom" => Ok(Self::Oom(1)),
            _ if text.parse::<u64>().is_ok() => {
                Err(format!("{text} has no unit; did you mean {text}s or step:{text}?"))
            }
            _ => memlab_units::parse_duration(text).map(Self::Time).ok_or_else(|| FORMS.to_owned()),
        }
    }
}

impl fmt::Display for NamedMoment {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Peak => formatter.write_str("the peak"),
            Self::End => formatter.write_str("the end"),
            Self::Oom(1) => formatter.write_str("the first out-of-memory"),
            Self::Oom(number) => write!(formatter, "out-of-memory {number}"),
            Self::Step(index) => write!(formatter, "the end of step {index}"),
            Self::Time(time) => formatter.write_str(&format::duration(*time)),
        }
    }
}

impl NamedMoment {
    /// The moment as typed on the command line.
    pub fn typed(self) -> String {
        match self {
            Self::Peak => "peak".to_owned(),
            Self::End => "end".to_owned(),
            Self::Oom(number) => format!("oom:{number}"),
            Self::Step(index) => format!("step:{index}"),
            Self::Time(time) => format!("{}s", time as f64 / 1e9),
        }
    }
}

/// State of a run at a moment.
pub struct LoadedMoment {
    /// State at the moment and at the end.
    pub snapshot: ResolvedSnapshot,
    /// Summary of the reading.
    pub through: ReadSummary,
    /// The requested moment.
    pub moment: NamedMoment,
}

impl LoadedMoment {
    /// Sets the scope of the displayed lines, chosen from the whole run so that all its moments agree.
    pub fn set_scope(&mut self, scope: Option<Scope>) {
        self.snapshot.final_model.set_scope(scope);
        let chosen = self.snapshot.final_model.scope();
        self.snapshot.model.set_scope(Some(chosen));
    }
}

/// Reads a trace up to one moment.
///
/// The peak is that of `device`, or else of the device with the highest peak. `observer` sees the replay up to the
/// moment.
///
/// # Errors
///
/// If the file is not a readable trace, has no such device or moment, or no longer contains the moment.
pub fn load_at(
    path: &Path,
    moment: NamedMoment,
    device: Option<i32>,
    observer: &mut dyn Observer,
) -> anyhow::Result<LoadedMoment> {
    let at = match moment {
        NamedMoment::End => SeekTarget::End,
        NamedMoment::Time(time) => SeekTarget::Time(time),
        // Finding the others requires reading the whole trace.
        _ => {
            let loaded = progress::report(|progress| load_whole(path, progress))?;
            find(path, &loaded.model, moment, device)?
        }
    };
    let mut replay = SnapshotReplay::new(at, observer);
    let through = progress::report(|progress| read_whole(path, &mut replay, progress))?;
    let snapshot = replay.finish();
    find(path, &snapshot.final_model, moment, device)?;
    if !snapshot.is_available {
        let steps = snapshot.model.steps_ended();
        return Err(bad_input(format!(
            "{}: this trace was condensed to stay within MEMLAB_TRACE_MAX and no longer contains {moment}. It is complete \
             after {}{}: use --at end, or a time or step after that",
            path.display(),
            format::duration(snapshot.model.time()),
            if steps > 0 { format!(" (step {})", steps - 1) } else { String::new() },
        )));
    }
    Ok(LoadedMoment { snapshot, through, moment })
}

/// The requested device, or else the one with the highest peak.
///
/// # Errors
///
/// If the run has no such device.
pub fn device_of(path: &Path, model: &Model, device: Option<i32>) -> anyhow::Result<DeviceView> {
    let devices = model.devices();
    if let Some(wanted) = device {
        return devices.iter().find(|view| view.index == wanted).cloned().ok_or_else(|| {
            let there: Vec<String> = devices.iter().map(|view| view.index.to_string()).collect();
            let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
            bad_input(format!("{}: this trace has no device {wanted}; it has {there}", path.display()))
        });
    }
    // The first of equal devices.
    let busiest = devices.into_iter().rev().max_by_key(|view| (view.peak_allocated_bytes, view.peak_used_bytes));
    busiest.ok_or_else(|| bad_input(format!("{}: no GPU memory was allocated in this run", path.display())))
}

/// Position of a moment in a trace; `model` is the state at its end.
///
/// # Errors
///
/// If the trace does not contain the moment.
pub fn find(path: &Path, model: &Model, moment: NamedMoment, device: Option<i32>) -> anyhow::Result<SeekTarget> {
    let fail = |message: String| Err(bad_input(format!("{}: {message}", path.display())));
    // The device must exist, whatever the moment.
    let peaked = match (moment, device) {
        (NamedMoment::Peak, _) | (_, Some(_)) => Some(device_of(path, model, device)?),
        _ => None,
    };
    Ok(match moment {
        NamedMoment::Peak => peaked.map_or(SeekTarget::End, |view| SeekTarget::event(view.peak_event, view.peak_time)),
        NamedMoment::End => SeekTarget::End,
        NamedMoment::Time(time) if time > model.time() => {
            return fail(format!("{moment} is later than the end of the trace, {}", format::duration(model.time())));
        }
        NamedMoment::Time(time) => SeekTarget::Time(time),
        NamedMoment::Oom(number) => match oom(&model.ooms(), model.oom_count(), number) {
            Ok(oom) => SeekTarget::event(oom.event, oom.time),
            Err(message) => return fail(message),
        },
        NamedMoment::Step(index) => match step(model.steps(), index) {
            Ok(step) => SeekTarget::event(step.end_event, step.end_time),
            Err(message) => return fail(message),
        },
    })
}

/// The out-of-memory error with this number, counted from 1.
///
/// `kept` holds the first half and the last half of those that the trace retains, of `count` in total.
///
/// # Errors
///
/// If no such error occurred or it was not retained.
pub fn oom(kept: &[OomView], count: u64, number: u64) -> Result<&OomView, String> {
    if count == 0 {
        return Err("this trace has no out-of-memory error: use @peak or @end".to_owned());
    }
    if number > count {
        let there = if count == 1 { "one: oom".to_owned() } else { format!("{count}: oom:1 to oom:{count}") };
        return Err(format!("this trace has no out-of-memory error {number}; it has {there}"));
    }
    let all = kept.len() as u64;
    let first = if all == count { count } else { all / 2 };
    let index = if number <= first { Some(number - 1) } else { (number + all).checked_sub(count + 1) };
    index.filter(|index| number <= first || *index >= first).and_then(|index| kept.get(index as usize)).ok_or_else(
        || format!("of {count} out-of-memory events only the first {first} and the last {} are kept", all - first),
    )
}

/// The step with this number. Long runs may join several steps into one.
///
/// # Errors
///
/// If the trace has no such step.
pub fn step(steps: &[StepView], index: u64) -> Result<&StepView, String> {
    let first = |step: &StepView| step.index.saturating_add(1).saturating_sub(step.steps);
    match steps.iter().find(|step| step.index >= index) {
        Some(step) if step.index == index => Ok(step),
        Some(step) if first(step) <= index => {
            Err(format!("this trace stores steps {} to {} as one: use step:{}", first(step), step.index, step.index))
        }
        _ => Err(match (steps.first(), steps.last()) {
            (Some(from), Some(to)) => {
                format!("this trace has no step {index}: its steps are {}–{}", first(from), to.index)
            }
            _ => format!("this trace has no step {index}: no optimizer step ended"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_parsed() {
        let parse = |text: &str| text.parse::<NamedMoment>().ok();
        assert_eq!(
            ["peak", "end", " oom ", "oom:2"].map(parse),
            [Some(NamedMoment::Peak), Some(NamedMoment::End), Some(NamedMoment::Oom(1)), Some(NamedMoment::Oom(2))]
        );
        assert_eq!([parse("step:0"), parse("step:12")], [Some(NamedMoment::Step(0)), Some(NamedMoment::Step(12))]);
        let times = ["12.5s", "850ms", "1m30s", "1:30", "1m 05s", "1.06 s", "2h 05m", "1:00:00.5", "15 µs", "0s"];
        assert_eq!(
            times.map(|text| parse(text).map(|moment| format!("{moment:?}"))),
            [
                "12500000000",
                "850000000",
                "90000000000",
                "90000000000",
                "65000000000",
                "1060000000",
                "7500000000000",
                "3600500000000",
                "15000",
                "0"
            ]
            .map(|ns| Some(format!("Time({ns})")))
        );
    }

    #[test]
    fn errors_list_the_valid_moments() {
        let error = |text: &str| text.parse::<NamedMoment>().unwrap_err();
        for text in ["", "Peak", "s", "1.2.3s", "-1s", "1e3s", "infs", "1:2:3:4", ":", "1:"] {
            assert_eq!(error(text), FORMS, "{text}");
        }
        assert_eq!(error("12"), "12 has no unit; did you mean 12s or step:12?");
        assert_eq!(error("step:x"), "'x' is not a step number; the first is step:0");
        assert_eq!(error("oom:0"), "'0' is not an out-of-memory number; the first is oom:1");
    }

    #[test]
    fn typed_moments_are_parsed_again() {
        for moment in [
            NamedMoment::Peak,
            NamedMoment::End,
            NamedMoment::Oom(3),
            NamedMoment::Step(7),
            NamedMoment::Time(1_500_000_000),
        ] {
            assert_eq!(moment.typed().parse(), Ok(moment));
        }
    }

    #[test]
    fn joined_steps_are_described() {
        let joined = |index, steps| StepView { index, steps, ..StepView::default() };
        let steps = [joined(3, 4), joined(7, 4)];
        assert_eq!(step(&steps, 7).map(|step| step.index), Ok(7));
        assert_eq!(step(&steps, 5).unwrap_err(), "this trace stores steps 4 to 7 as one: use step:7");
        assert_eq!(step(&steps, 8).unwrap_err(), "this trace has no step 8: its steps are 0–7");
        assert_eq!(step(&[], 0).unwrap_err(), "this trace has no step 0: no optimizer step ended");
    }
}
