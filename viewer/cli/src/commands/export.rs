//! `memlab export`: a moment of a run, or the run over time, in another program's format.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use memlab_trace::{Observer, load_whole};

use memlab_base::arguments::Libraries;

use memlab_base::moment::{NamedMoment, device_of, load_at};
use memlab_base::save::Destination;
use memlab_base::text::short_command;
use memlab_base::{output, progress};
use memlab_report::export::flamegraph::{Measure, flamegraph};
use memlab_report::export::{csv, json, memory_viz, perfetto, speedscope};
use memlab_report::report::deep_stacks;
use memlab_units::format;

/// An output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Format {
    /// Everything known about the moment, for scripts
    Json,
    /// Live blocks, one per row, for spreadsheets
    Csv,
    /// Live bytes by stack, as an SVG flame graph for a browser
    Flamegraph,
    /// Live bytes by stack, for speedscope.app
    Speedscope,
    /// Memory over time up to the moment, for ui.perfetto.dev
    Perfetto,
    /// A snapshot for PyTorch's own viewer, pytorch.org/memory_viz
    MemoryViz,
}

impl Format {
    /// Returns true if the format can be printed on a terminal.
    fn is_text(self) -> bool {
        !matches!(self, Self::Perfetto | Self::MemoryViz)
    }
}

/// Options of `memlab export`.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// The trace (.jsonl or .jsonl.zst).
    file: PathBuf,
    /// The format.
    #[arg(long, value_enum)]
    format: Format,
    /// The file to write (- for standard output).
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// The moment [default: peak; with perfetto: end].
    #[arg(long, value_name = "MOMENT")]
    at: Option<NamedMoment>,
    /// Export one device, at its own peak [default: all devices at the moment of the highest peak; flamegraph: the device
    /// with that peak; speedscope: each device at its own peak].
    #[arg(long, value_name = "N")]
    device: Option<i32>,
    /// memory_viz: number of latest events to write.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    events: usize,
    /// csv, json, perfetto: attribute memory to library lines instead of your lines [default: auto; alone: always].
    #[arg(long, value_name = "WHEN", num_args = 0..=1, require_equals = true, default_missing_value = "always")]
    libraries: Option<Libraries>,
}

/// Exports a trace.
///
/// # Errors
///
/// If the trace cannot be read or lacks the moment or device, or the output cannot be written.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let Options { file, format, device, .. } = options;
    let destination = Destination::of(&options.output);
    destination.check(file, format.is_text())?;
    // A run over time defaults to the whole run.
    let moment = options.at.unwrap_or(if *format == Format::Perfetto { NamedMoment::End } else { NamedMoment::Peak });
    let load = |observer: &mut dyn Observer| {
        let mut loaded = load_at(file, moment, *device, observer)?;
        loaded.set_scope(Libraries::scope(options.libraries));
        anyhow::Ok(loaded)
    };
    let mut notes = Vec::new();
    let deep;
    let then = match format {
        Format::Json => {
            let loaded = load(&mut ())?;
            destination.write(|out| json::write(out, file, &loaded, *device))?;
            deep = deep_stacks(&loaded.snapshot.final_model);
            loaded.snapshot.model.time()
        }
        Format::Csv => {
            let loaded = load(&mut ())?;
            destination.write(|out| csv::write(out, &loaded.snapshot, *device))?;
            deep = deep_stacks(&loaded.snapshot.final_model);
            loaded.snapshot.model.time()
        }
        Format::Flamegraph | Format::Speedscope => {
            // The model keeps the stacks live at the peak, even if the trace no longer contains that moment.
            let model = if moment == NamedMoment::Peak {
                progress::report(|progress| load_whole(file, progress))?.model
            } else {
                load(&mut ())?.snapshot.model
            };
            let view = device_of(file, &model, *device)?;
            if *format == Format::Speedscope {
                destination.write(|out| speedscope::write(out, &model, moment, *device))?;
            } else {
                let measure = if moment == NamedMoment::Peak { Measure::AtPeak } else { Measure::Live };
                let command = model.header().map(|header| short_command(&header.command)).unwrap_or_default();
                let title = format!("{command}: cuda:{} allocated at {moment}", view.index);
                let picture = flamegraph(&model.calls(view.index), model.sources(), measure, &title);
                destination.write(|out| out.write_all(picture.as_bytes()))?;
            }
            deep = deep_stacks(&model);
            if moment == NamedMoment::Peak { view.peak_time } else { model.time() }
        }
        Format::Perfetto => {
            let mut events = perfetto::EventCollector::default();
            let loaded = load(&mut events)?;
            destination.write(|out| perfetto::write(out, &loaded, &events, *device))?;
            deep = None; // The format has lines, not stacks.
            if events.lost_phases() {
                notes.push("too many phases to show: they were left out".to_owned());
            }
            if events.lost_ran() > 0 {
                let lost = format::grouped(events.lost_ran());
                notes
                    .push(format!("too much ran on the GPU to show: the last {lost} kernels and copies were left out"));
            }
            if events.lost_ranges() {
                notes.push("too many ranges to show: they were left out".to_owned());
            }
            loaded.snapshot.model.time()
        }
        Format::MemoryViz => {
            let mut events = memory_viz::Events::keeping(options.events);
            let loaded = load(&mut events)?;
            destination.write(|out| memory_viz::write(out, &loaded, &events, *device))?;
            deep = deep_stacks(&loaded.snapshot.final_model);
            if events.left_out() > 0 {
                notes.push(format!(
                    "it has the latest {} events; {} earlier ones were left out (--events)",
                    format::grouped(options.events as u64),
                    format::grouped(events.left_out())
                ));
            }
            loaded.snapshot.model.time()
        }
    };
    notes.extend(deep);
    if let Destination::File(path) = &destination {
        let (then, path) = (format::duration(then), path.display().to_string());
        notes.insert(0, format!("{moment}, after {then} → {}", path));
    }
    for note in notes {
        output::note(note);
    }
    Ok(())
}
