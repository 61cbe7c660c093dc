//! `memlab export`: a moment of a run, or the run over time, in a format of other programs.

use std::path::PathBuf;

use clap::ValueEnum;
use memlab_trace::{Observer, Scope, load_whole};

use crate::export::flamegraph::{Measure, flamegraph};
use crate::export::{csv, json, memory_viz, perfetto, speedscope};
use crate::moment::{Moment, device_of, load_at};
use crate::report::deep_stacks;
use crate::save::Destination;
use crate::text::{clean, short_command};
use crate::{format, progress};

/// A format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Format {
    /// Everything at the moment, for scripts
    Json,
    /// The live blocks, one a row, for spreadsheets
    Csv,
    /// Live bytes by stack, as a picture to open in a browser
    Flamegraph,
    /// The same for speedscope.app
    Speedscope,
    /// The run up to the moment over time, for ui.perfetto.dev
    Perfetto,
    /// A snapshot for PyTorch's own viewer, pytorch.org/memory_viz
    MemoryViz,
}

impl Format {
    /// Whether it can be shown on a terminal.
    fn is_text(self) -> bool {
        !matches!(self, Self::Perfetto | Self::MemoryViz)
    }
}

/// What to export, and where to.
#[derive(Clone, Debug)]
pub struct Options {
    /// The trace.
    pub file: PathBuf,
    /// As what.
    pub format: Format,
    /// Where to; `-`: standard output.
    pub output: PathBuf,
    /// Of which moment; `None`: what suits the format.
    pub at: Option<Moment>,
    /// Of which device alone.
    pub device: Option<i32>,
    /// Whose lines are told, in formats that name one line; `None`: libraries' where the user's only call them.
    pub scope: Option<Scope>,
    /// How many events of the past a snapshot has.
    pub events: usize,
}

/// Exports.
///
/// # Errors
///
/// If the trace cannot be read, has no such moment or device, or the output cannot be written.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let Options { file, format, device, .. } = options;
    let destination = Destination::of(&options.output);
    destination.check(file, format.is_text())?;
    // A run over time is rather wanted whole.
    let moment = options.at.unwrap_or(if *format == Format::Perfetto { Moment::End } else { Moment::Peak });
    let load = |observer: &mut dyn Observer| {
        let mut looked = load_at(file, moment, *device, observer)?;
        looked.choose(options.scope);
        anyhow::Ok(looked)
    };
    let mut notes = Vec::new();
    let deep;
    let then = match format {
        Format::Json => {
            let looked = load(&mut ())?;
            destination.write(|out| json::write(out, file, &looked, *device))?;
            deep = deep_stacks(&looked.seen.final_model);
            looked.seen.model.time()
        }
        Format::Csv => {
            let looked = load(&mut ())?;
            destination.write(|out| csv::write(out, &looked.seen, *device))?;
            deep = deep_stacks(&looked.seen.final_model);
            looked.seen.model.time()
        }
        Format::Flamegraph | Format::Speedscope => {
            // What stacks held at the peak the model knows by itself, also when the trace no longer has that moment.
            let model = if moment == Moment::Peak {
                progress::shown(|progress| load_whole(file, progress))?.model
            } else {
                load(&mut ())?.seen.model
            };
            let view = device_of(file, &model, *device)?;
            if *format == Format::Speedscope {
                destination.write(|out| speedscope::write(out, &model, moment, *device))?;
            } else {
                let measure = if moment == Moment::Peak { Measure::AtPeak } else { Measure::Live };
                let command = model.header().map(|header| short_command(&header.command)).unwrap_or_default();
                let title = format!("{command}: cuda:{} allocated at {moment}", view.index);
                let picture = flamegraph(&model.calls(view.index), measure, &title);
                destination.write(|out| out.write_all(picture.as_bytes()))?;
            }
            deep = deep_stacks(&model);
            if moment == Moment::Peak { view.peak_time } else { model.time() }
        }
        Format::Perfetto => {
            let mut course = perfetto::Course::default();
            let looked = load(&mut course)?;
            destination.write(|out| perfetto::write(out, &looked, &course, *device))?;
            deep = None; // It shows lines, not stacks.
            if course.lost_phases() {
                notes.push("too many phases to show: they were left out".to_owned());
            }
            looked.seen.model.time()
        }
        Format::MemoryViz => {
            let mut events = memory_viz::Events::keeping(options.events);
            let looked = load(&mut events)?;
            destination.write(|out| memory_viz::write(out, &looked, &events, *device))?;
            deep = deep_stacks(&looked.seen.final_model);
            if events.left_out() > 0 {
                notes.push(format!(
                    "it has the latest {} events; {} earlier ones were left out (--events)",
                    format::grouped(options.events as u64),
                    format::grouped(events.left_out())
                ));
            }
            looked.seen.model.time()
        }
    };
    notes.extend(deep);
    if let Destination::File(path) = &destination {
        let (then, path) = (format::duration(then), path.display().to_string());
        notes.insert(0, format!("{moment}, after {then} → {}", clean(&path)));
    }
    for note in notes {
        eprintln!("memlab: {note}");
    }
    Ok(())
}
