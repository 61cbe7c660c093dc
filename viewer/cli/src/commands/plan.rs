//! `memlab plan`: forecasts a program's memory without a GPU.

mod further;
mod lengths;

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum, ValueHint};
use memlab_predict::plan::{Family, Program, Recording};
use simgpu_cards::{MODELS, Model};

use self::lengths::{LengthProgram, Lengths};
use crate::recording::{BATCH, LENGTH, Recorder};
use memlab_base::error::bad_input;
use memlab_base::preload::check_program;
use memlab_base::save::Destination;
use memlab_base::simulation::Simulation;
use memlab_base::text::{Style, short_command};
use memlab_base::{json, output};
use memlab_report::plan::answer::{Answer, PlannedCard, Question};
use memlab_report::plan::charts::PlanCharts;
use memlab_report::plan::sequence::{SequenceAnswer, SequenceQuestion};
use memlab_report::plan::{html, sequence_text, text};

/// Help text after the options.
pub const HELP: &str = "\
Examples:
  memlab plan -- python train.py --batch {batch}
  memlab plan --card a100-40gb --predict 8,16,64 -- python train.py --batch {batch}
  memlab plan -- torchrun --nproc-per-node 8 train.py --batch {batch}
  memlab plan --card 24GiB -- python train.py            the program as it is, without a batch size to choose
  memlab plan --html plan.html -- python train.py --batch {batch}
                                                         also write a page with charts
  memlab plan --batch 8,16 batch-8.jsonl batch-16.jsonl  from traces kept by `memlab plan --keep`
  memlab plan --lengths lengths.txt --batch 8 -- python train.py --batch {batch} --length {length}

The program runs three times for a few steps on a simulated card: at two batch sizes in place of {batch}, and at a larger one that \
checks the forecast. More runs follow if its memory does not grow evenly. No GPU is needed; kernels compute nothing. After the steps the \
program evaluates and saves as in a short epoch, but its files are not written. Its code before the training loop runs in full each \
time. Request sizes are assumed to grow linearly with the batch; an allocator simulator computes their footprint.";

/// The device that runs the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RunsOn {
    /// A simulated card.
    Simulation,
    /// The machine's GPU.
    Gpu,
}

/// Smallest memory of the simulated card during recording: small batches then run on it in any case.
const MIN_RECORDING_CARD_BYTES: u64 = 80 << 30;

/// Options of `memlab plan`.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// The card to plan for: its name (`memlab simulate --list`) or its memory (such as 24GiB).
    #[arg(long, value_name = "CARD", default_value = "h100", value_parser = card)]
    card: Card,
    /// The two batch sizes at which to run the program, or those of the two traces. With --lengths: the one batch size
    /// of all steps.
    #[arg(long, value_name = "N,N", default_value = "8,16", value_parser = batches)]
    batch: Batches,
    /// The batch sizes to forecast [default: chosen automatically].
    #[arg(long, value_name = "N,…", value_parser = batches, default_value = "", hide_default_value = true)]
    predict: Batches,
    /// The sequence length of each step; it replaces {length}. A file with one number per line, or the numbers.
    #[arg(long, value_name = "FILE|N,…")]
    lengths: Option<Lengths>,
    /// Number of ranks of the program: rank 0 runs, and the others are assumed to do the same. [default: torchrun's or
    /// accelerate's, if the command begins with one of them]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    ranks: Option<u32>,
    /// Number of optimizer steps to record.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
    /// End the program after these steps, without evaluation or saving.
    #[arg(long)]
    training_only: bool,
    /// Stop each run of the program after this many seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 300.0)]
    seconds: f64,
    /// Where to run the program.
    #[arg(long, value_enum, default_value_t = RunsOn::Simulation)]
    on: RunsOn,
    /// Settings of PyTorch's allocator [default: PYTORCH_ALLOC_CONF].
    #[arg(long, value_name = "SETTINGS")]
    allocator: Option<String>,
    /// Also run the program at the largest batch that fits, however large it is, to check the forecast.
    #[arg(long)]
    check: bool,
    /// Keep the traces in this folder.
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,
    /// Print the plan as JSON.
    #[arg(long)]
    json: bool,
    /// Also write the plan as a web page with charts (- for standard output, without the text).
    #[arg(long, value_name = "OUT")]
    html: Option<PathBuf>,
    /// The command, with {batch} where the batch size goes; or one or two traces.
    #[arg(trailing_var_arg = true, value_hint = ValueHint::CommandWithArguments, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// A card, and the name or size that the user typed.
#[derive(Clone, Debug)]
struct Card {
    name: String,
    model: Model,
}

impl Card {
    fn planned(&self) -> PlannedCard {
        let Self { name, model } = self;
        let is_of_table = MODELS.iter().any(|known| known.name == model.name);
        PlannedCard {
            name: if is_of_table { model.device_name.to_owned() } else { name.clone() },
            bytes: model.memory,
            context_bytes: model.context.bytes,
            context_is_measured: model.context.is_measured,
        }
    }
}

fn card(text: &str) -> Result<Card, String> {
    let model = simgpu_cards::find(text).map_err(|error| error.to_string())?;
    Ok(Card { name: text.to_owned(), model })
}

/// Comma-separated numbers.
///
/// A newtype, because clap would take a `Vec` as several arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Batches(Vec<u64>);

impl fmt::Display for Batches {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let numbers: Vec<String> = self.0.iter().map(u64::to_string).collect();
        f.write_str(&numbers.join(","))
    }
}

fn batches(text: &str) -> Result<Batches, String> {
    if text.is_empty() {
        return Ok(Batches(Vec::new()));
    }
    let number = |part: &str| part.trim().parse().ok().filter(|number| *number > 0);
    let numbers: Option<Vec<u64>> = text.split(',').map(number).collect();
    numbers.map(Batches).ok_or_else(|| "write batch sizes as 8,16".to_owned())
}

/// Prints a plan.
///
/// # Errors
///
/// If the program cannot be run, or its recordings allow no forecast.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let page = options.html.as_deref().map(Destination::of);
    if let Some(page) = &page {
        page.check(Path::new(""), true)?;
    }
    let card = options.card.planned();
    let settings = options.allocator.clone().or_else(settings_today).unwrap_or_default();
    let traces = traces(&options.command);
    let (program, sequence) = match (&traces[..], &options.lengths) {
        ([], None) => (recorded(options, &card, &settings)?, None),
        ([], Some(lengths)) => {
            let (longest, sequence) = sequence(options, lengths, &card, &settings)?;
            (Program::new(longest), Some(sequence))
        }
        (traces, None) => (Program::new(from_traces(options, traces)?), None),
        (_, Some(_)) => return Err(bad_input("--lengths needs a command, which is recorded at three lengths")),
    };
    let question = Question { program: &program, card, settings, batches: options.predict.0.clone() };
    let answer = Answer { sequence, ..Answer::to(&question)? };
    if let Some(page) = &page {
        let command: Vec<String> = options.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let charts = PlanCharts::of(&question, &answer)?;
        page.write(|mut out| html::write(&mut out, &short_command(&command), &answer, &charts))?;
        if *page == Destination::Output {
            return Ok(());
        }
    }
    if options.json {
        return Ok(json::write_pretty(&mut output::stdout(), &answer)?);
    }
    let mut out = output::stdout();
    let columns = Style::of_output().columns;
    if let Some(sequence) = &answer.sequence {
        sequence_text::write(&mut out, sequence, columns)?;
        writeln!(out, "\nIf all steps had length {}:\n", sequence.longest)?;
    }
    text::write(&mut out, &answer, columns)?;
    Ok(out.flush()?)
}

/// Records the program at three lengths.
///
/// Returns its requests with all steps at the longest length, and the forecast of the sequence.
fn sequence(
    options: &Options,
    lengths: &Lengths,
    card: &PlannedCard,
    settings: &str,
) -> anyhow::Result<(Family, SequenceAnswer)> {
    let lengths = lengths.read()?;
    let folder = Folder::of(options)?;
    let LengthProgram { family, recorded, batch } =
        lengths::recorded(&mut recorder(options, &folder)?, &options.batch.0, &lengths)?;
    let (card_bytes, context_bytes) = (card.bytes, card.context_bytes);
    let question =
        SequenceQuestion { family: &family, recorded, lengths: &lengths, batch, card_bytes, context_bytes, settings };
    let answer = SequenceAnswer::to(&question)?;
    Ok((Family::of_one(family.recording.clone()), answer))
}

/// Allocator settings from the environment.
fn settings_today() -> Option<String> {
    ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"].iter().find_map(|name| env::var(name).ok())
}

/// Returns the arguments if all of them are traces, otherwise nothing.
fn traces(command: &[OsString]) -> Vec<PathBuf> {
    let is_trace = |path: &Path| {
        let name = path.to_string_lossy();
        (name.ends_with(".jsonl") || name.ends_with(".jsonl.zst")) && path.is_file()
    };
    let paths: Vec<PathBuf> = command.iter().map(PathBuf::from).collect();
    if paths.iter().all(|path| is_trace(path)) { paths } else { Vec::new() }
}

fn from_traces(options: &Options, traces: &[PathBuf]) -> anyhow::Result<Family> {
    let read =
        |path: &PathBuf| Recording::read(path).map_err(|error| bad_input(format!("{}: {error}", path.display())));
    match (traces, &options.batch.0[..]) {
        ([one], _) => Ok(Family::of_one(read(one)?)),
        ([one, other], [batch, other_batch]) => Family::of_two((*batch, read(one)?), (*other_batch, read(other)?))
            .map_err(|error| bad_input(error.to_string())),
        ([_, _], _) => Err(bad_input("two traces need their two batch sizes: --batch 8,16")),
        _ => Err(bad_input("name one or two traces, not more")),
    }
}

/// The folder of the recorded traces.
enum Folder {
    /// Removed at the end.
    Temporary(tempfile::TempDir),
    Kept(PathBuf),
}

impl Folder {
    fn of(options: &Options) -> anyhow::Result<Folder> {
        let Some(folder) = &options.keep else {
            return Ok(Self::Temporary(tempfile::Builder::new().prefix("memlab-plan-").tempdir()?));
        };
        std::fs::create_dir_all(folder)?;
        Ok(Self::Kept(std::path::absolute(folder)?))
    }

    fn path(&self) -> &Path {
        match self {
            Self::Temporary(folder) => folder.path(),
            Self::Kept(folder) => folder,
        }
    }
}

fn recorder(options: &Options, folder: &Folder) -> anyhow::Result<Recorder> {
    check_program(&options.command[0], "plan")?;
    if options.ranks.is_some() && options.on == RunsOn::Gpu {
        return Err(bad_input("--ranks needs a simulated card: leave out --on gpu, or --ranks"));
    }
    Ok(Recorder {
        command: options.command.clone(),
        length: None,
        simulation: (options.on == RunsOn::Simulation).then(|| Simulation {
            card: Some(options.card.name.clone()),
            memory: Some(options.card.model.memory.max(MIN_RECORDING_CARD_BYTES)),
            devices: devices(options.ranks),
        }),
        ranks: options.ranks,
        steps: options.steps,
        phases: !options.training_only && options.lengths.is_none(),
        seconds: options.seconds,
        folder: folder.path().to_owned(),
        environment: Vec::new(),
    })
}

/// Records the program at the two batch sizes, and at others if needed.
fn recorded(options: &Options, card: &PlannedCard, settings: &str) -> anyhow::Result<Program> {
    let folder = Folder::of(options)?;
    let mut recorder = recorder(options, &folder)?;
    if recorder.takes(LENGTH) {
        return Err(bad_input("{length} needs --lengths FILE, with the length of each step"));
    }
    if !recorder.takes(BATCH) {
        return Ok(Program::new(Family::of_one(recorder.record(None)?)));
    }
    let [one, other] = options.batch.0[..] else {
        return Err(bad_input("name two batch sizes to record: --batch 8,16"));
    };
    let (low, high) = (one.min(other), one.max(other));
    // Run both at the same time.
    let first = recorder.start(Some(low))?;
    let second = recorder.record(Some(high))?;
    let first = match first.finish()? {
        recording if recording.ran_out_of_memory => recorder.record(Some(low))?,
        recording => recording,
    };
    let family = Family::of_two((low, first), (high, second)).map_err(|error| bad_input(error.to_string()))?;
    let mut program = Program::new(family);
    let asked = further::BatchChoice { batches: &options.predict.0, check: options.check };
    further::record(&asked, card, settings, &mut recorder, &mut program)?;
    Ok(program)
}

/// Number of cards in the machine: one for each rank, at most 8.
fn devices(ranks: Option<u32>) -> u8 {
    const MAX_CARDS: u8 = 8;
    ranks.map_or(1, |ranks| u8::try_from(ranks).unwrap_or(u8::MAX).min(MAX_CARDS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_sizes_are_read() {
        assert_eq!(batches("8,16"), Ok(Batches(vec![8, 16])));
        assert_eq!(batches(" 8 , 64 ").unwrap().to_string(), "8,64");
        assert_eq!(batches(""), Ok(Batches(Vec::new())));
        for wrong in ["0", "8,", "a", "-1"] {
            assert!(batches(wrong).is_err(), "{wrong}");
        }
    }
}
