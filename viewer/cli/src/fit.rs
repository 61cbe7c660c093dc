//! `memlab run --fit`: chooses changes with which an unmodified program fits into less GPU memory, and tries them on a
//! simulated card before the program starts.

use std::ffi::OsString;
use std::path::Path;

use memlab_predict::advice::{Recomputation, advise, recomputation};
use memlab_predict::allocator::Settings;
use memlab_predict::plan::{Family, Program, Recording, Search};
use serde::Serialize;
use std::collections::BTreeSet;

use crate::recording::Recorder;
use crate::run::Options;
use memlab_base::error::bad_input;
use memlab_base::output;
use memlab_base::simulation::Simulation;
use memlab_base::text;
use memlab_follow::cards::{CardStatus, cards};
use memlab_units::format::{self, size};

/// Number of optimizer steps in each run on the simulated card.
const STEPS: u32 = 3;

/// Longest run on the simulated card, in seconds.
const SECONDS: f64 = 300.0;

/// Number of selections that are tried.
const MAX_ATTEMPTS: usize = 5;

/// Memory of the simulated card: the unchanged program may need more than any card has.
const RECORDING_CARD_BYTES: u64 = 1 << 40;

/// The allocator setting that keeps reserved memory close to allocated memory.
const EXPANDABLE: &str = "expandable_segments:True";

/// The card of a machine without one.
const DEFAULT_CARD: &str = "h100";

/// Begin and end of the agent's messages about a module.
const REFUSED: (&str, &str) = ("the activations of ", " cannot be computed again");
const GRADIENTS_READ: &str = "gradients are not released early";
const LEFT_OUT: (&str, &str) = ("the activations of ", " are not recomputed");

/// Share of the target that stays free, in percent: the model of the allocator is that inaccurate.
const MARGIN_PERCENT: u64 = 1;

/// The decision, as the agent reads it from `MEMLAB_FIT`.
#[derive(Clone, Debug, Serialize)]
struct Decision {
    /// Most bytes that PyTorch's allocator reserves. Beyond that it returns cached memory. `None`: no bound.
    reserved_bytes: Option<u64>,
    /// Releases gradients when the optimizer's step has ended.
    early_gradients: bool,
    /// True for a run on a simulated card, which reports what would read the gradients.
    rehearse: bool,
    checkpoint: Vec<Root>,
}

/// Modules of one outermost module.
#[derive(Clone, Debug, Serialize)]
struct Root {
    root: String,
    modules: Vec<String>,
}

impl Decision {
    /// The decision for a run on a simulated card.
    fn rehearsed(changes: &Changes) -> Self {
        let mut decision = Self {
            reserved_bytes: None,
            early_gradients: changes.early_gradients,
            rehearse: true,
            checkpoint: Vec::new(),
        };
        for module in changes.recomputed.iter().flat_map(|found| &found.modules) {
            match decision.checkpoint.iter_mut().find(|root| root.root == module.root) {
                Some(root) => root.modules.push(module.name.clone()),
                None => {
                    decision.checkpoint.push(Root { root: module.root.clone(), modules: vec![module.name.clone()] })
                }
            }
        }
        decision
    }
}

/// Changes of a program.
#[derive(Clone, Debug)]
struct Changes {
    early_gradients: bool,
    recomputed: Option<Recomputation>,
}

impl Changes {
    /// Names of the modules whose activations are recomputed.
    fn modules(&self) -> Vec<&str> {
        self.recomputed.iter().flat_map(|found| &found.modules).map(|module| &*module.name).collect()
    }

    fn described(&self) -> String {
        let mut parts = vec!["expandable segments".to_owned()];
        if self.early_gradients {
            parts.push("early gradients".to_owned());
        }
        if let Some(found) = &self.recomputed {
            let cost =
                found.cost_ns.map_or_else(String::new, |cost| format!(": about +{} a step", format::time_spent(cost)));
            let count = found.modules.len();
            parts.push(format!("{count} of {} modules checkpointed ({}){cost}", found.candidates, found.place));
        }
        match parts.split_last() {
            Some((last, [])) => last.clone(),
            Some((last, others)) => format!("{} and {last}", others.join(", ")),
            None => String::new(),
        }
    }
}

/// Environment variables that make a program fit.
type Environment = Vec<(&'static str, String)>;

/// Returns the environment in which the program of `memlab run` fits; empty if it fits as it is, or without `--fit`.
///
/// # Errors
///
/// If the program cannot be recorded, or fits with no selection.
pub fn environment(options: &Options) -> anyhow::Result<Environment> {
    let Some(asked) = options.fit else { return Ok(Environment::new()) };
    let (command, excluded) = (&*options.command, &options.fit_without);
    let all = cards();
    let card = all.first();
    let Some(target) = asked.or_else(|| card.and_then(free)) else {
        return Err(bad_input(
            "this machine has no GPU whose memory is known: name a size, as in `memlab run --fit 16GiB`",
        ));
    };
    let known = card.and_then(|card| simgpu_cards::find(&card.name).ok());
    let model = known.map_or_else(|| simgpu_cards::find(DEFAULT_CARD), Ok)?;
    let folder = tempfile::Builder::new().prefix("memlab-fit-").tempdir()?;
    let trial = Trial { command, card: model.name, folder: folder.path() };
    output::note(format_args!("recording {STEPS} steps on a simulated {} …", model.device_name));
    let recording = trial.recorder(Environment::new()).start(None)?.finish()?;
    let fitting = Fitting { trial, program: &program(command), target, recording: &recording };
    fitting.environment(excluded.iter().cloned().collect())
}

fn free(card: &CardStatus) -> Option<u64> {
    Some(card.total_bytes?.saturating_sub(card.used_bytes?))
}

fn program(command: &[OsString]) -> String {
    let words: Vec<String> = command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    text::short_command(&words)
}

/// Runs of the program on a simulated card.
struct Trial<'a> {
    command: &'a [OsString],
    card: &'a str,
    folder: &'a Path,
}

/// Result of a run with changes.
enum Tried {
    /// It needs these bytes of a card.
    Needs(CardNeeds),
    /// These modules cannot be recomputed.
    Refused(Vec<String>),
    /// The program reads gradients after the step.
    ReadsGradients,
}

/// Bytes of a card that a run takes, context included.
#[derive(Clone, Copy, Debug)]
struct CardNeeds {
    /// If the card is never full.
    at_ease: u64,
    /// If PyTorch returns cached memory, for which it stops the GPU.
    least: u64,
}

impl Trial<'_> {
    fn recorder(&self, environment: Environment) -> Recorder {
        let (card, memory) = (Some(self.card.to_owned()), Some(RECORDING_CARD_BYTES));
        Recorder {
            command: self.command.to_vec(),
            length: None,
            simulation: Some(Simulation { card, memory, devices: 1 }),
            ranks: None,
            steps: STEPS,
            phases: true,
            seconds: SECONDS,
            folder: self.folder.to_owned(),
            environment,
        }
    }

    /// Runs the changed program.
    fn run(&self, environment: Environment, settings: &str) -> anyhow::Result<Tried> {
        let recording = match self.recorder(environment).start(None)?.finish() {
            Ok(recording) => recording,
            Err(error) => {
                let refused = named(&error.to_string(), REFUSED);
                return if refused.is_empty() { Err(error) } else { Ok(Tried::Refused(refused)) };
            }
        };
        let left_out: Vec<String> =
            recording.model.warnings().iter().flat_map(|warning| named(warning, LEFT_OUT)).collect();
        if recording.model.warnings().iter().any(|warning| warning.contains(GRADIENTS_READ)) {
            return Ok(Tried::ReadsGradients);
        }
        if !left_out.is_empty() {
            return Ok(Tried::Refused(left_out));
        }
        let peaks = recording.model.peaks(recording.device);
        let rest = peaks.used_bytes.saturating_sub(peaks.reserved_bytes);
        let settings = Settings::parse(settings).map_err(|error| bad_input(error.to_string()))?;
        let settings = settings.for_torch(recording.torch_version());
        // Fragmentation may grow for some steps more than were recorded.
        let program = Program::new(Family::of_one(recording));
        let needs = Search::new(&program, settings, rest).needs(None);
        let at_ease = needs.planned.counters.reserved.peak + rest;
        Ok(Tried::Needs(CardNeeds { at_ease, least: needs.least }))
    }
}

/// Returns the names between two parts of a message.
fn named(message: &str, (before, after): (&str, &str)) -> Vec<String> {
    let mut names = Vec::new();
    for part in message.split(before).skip(1) {
        if let Some((name, _)) = part.split_once(after)
            && !name.contains(char::is_whitespace)
            && !names.iter().any(|known| known == name)
        {
            names.push(name.to_owned());
        }
    }
    names
}

/// The search for changes.
struct Fitting<'a> {
    trial: Trial<'a>,
    program: &'a str,
    /// Most memory on the card.
    target: u64,
    /// The unchanged program.
    recording: &'a Recording,
}

impl Fitting<'_> {
    fn environment(&self, mut excluded: BTreeSet<String>) -> anyhow::Result<Environment> {
        let (program, target) = (self.program, self.target);
        let peaks = self.recording.model.peaks(self.recording.device);
        let taken = peaks.used_bytes;
        if taken <= target {
            output::note(format_args!("{program} takes {} of the card, which fits. Starting it", size(taken)));
            return Ok(Environment::new());
        }
        // The context, and memory that PyTorch's allocator does not manage.
        let rest = taken.saturating_sub(peaks.reserved_bytes);
        let Some(budget) = target.checked_sub(rest) else {
            return Err(bad_input(format!(
                "{program} does not fit in {}: its context and libraries alone take {}",
                size(target),
                size(rest)
            )));
        };
        // The model of the allocator is inaccurate: a run that needs at most this fits.
        let tight = target - target / 100 * MARGIN_PERCENT;
        let settings = settings();
        let mut changes = Changes { early_gradients: true, recomputed: None };
        let mut aim = i128::from(budget);
        let mut tried: Vec<(Changes, CardNeeds)> = Vec::new();
        for _ in 0..MAX_ATTEMPTS {
            let wanted = u64::try_from(aim).unwrap_or(0);
            changes.recomputed = match peaks.allocated_bytes <= wanted {
                true => None,
                false => recomputation(self.recording, wanted, &excluded),
            };
            if tried.iter().any(|(other, _)| other.modules() == changes.modules()) {
                break;
            }
            let needs = match self.trial.run(variables(&Decision::rehearsed(&changes), &settings), &settings.1)? {
                Tried::Needs(needs) => needs,
                Tried::Refused(names) => {
                    output::note(format_args!("activations of {} cannot be recomputed", names.join(", ")));
                    excluded.extend(names);
                    continue;
                }
                Tried::ReadsGradients => {
                    changes.early_gradients = false;
                    continue;
                }
            };
            let predicted = changes.recomputed.as_ref().map_or(peaks.allocated_bytes, |found| found.allocated_bytes);
            tried.push((changes.clone(), needs));
            aim = i128::from(predicted) + i128::from(target) - i128::from(needs.at_ease);
        }
        let cheapest = |fits: &dyn Fn(&CardNeeds) -> bool| {
            let fitting = tried.iter().filter(|(_, needs)| fits(needs));
            fitting.min_by_key(|(changes, _)| {
                (changes.recomputed.as_ref().and_then(|found| found.cost_ns), changes.modules().len())
            })
        };
        let chosen = cheapest(&|needs| needs.at_ease <= target).or_else(|| cheapest(&|needs| needs.least <= tight));
        let Some((changes, needs)) = chosen else {
            let least = tried.iter().map(|(_, needs)| needs.least).min().unwrap_or(taken);
            return Err(self.hopeless(least.saturating_sub(tight), budget));
        };
        output::note(format_args!(
            "{program} takes {} of the card. Fits in {} with {}. Starting it",
            size(taken),
            size(needs.at_ease.min(target)),
            changes.described()
        ));
        let decision = Decision { reserved_bytes: Some(budget), rehearse: false, ..Decision::rehearsed(changes) };
        Ok(variables(&decision, &settings))
    }

    /// The error for a program that fits with no selection: by how much it misses, and the batch that would fit.
    fn hopeless(&self, missing: u64, budget: u64) -> anyhow::Error {
        let batch = advise(self.recording, Some(budget), &[]).batch.filter(|batch| batch.percent < 100);
        let batch = batch.map_or_else(String::new, |batch| {
            format!(". A batch {}.{:02} times as large should fit", batch.percent / 100, batch.percent % 100)
        });
        bad_input(format!(
            "{} does not fit in {}: with expandable segments and the activations of all possible modules recomputed, it \
             misses by {}{batch}. It was not started",
            self.program,
            size(self.target),
            size(missing),
        ))
    }
}

/// Settings of the allocator with which the program runs, and the variable that has them.
fn settings() -> (&'static str, String) {
    let names = ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"];
    let set =
        names.into_iter().find_map(|name| Some((name, std::env::var(name).ok().filter(|text| !text.is_empty())?)));
    match set {
        Some((name, settings)) if settings.contains("expandable_segments") => (name, settings),
        Some((name, settings)) => (name, format!("{settings},{EXPANDABLE}")),
        None => ("PYTORCH_CUDA_ALLOC_CONF", EXPANDABLE.to_owned()),
    }
}

fn variables(decision: &Decision, (variable, settings): &(&'static str, String)) -> Environment {
    let decision = serde_json::to_string(decision).unwrap_or_default();
    vec![(variable, settings.clone()), ("MEMLAB_FIT", decision)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_found_in_the_agents_messages() {
        let text = "RuntimeError: memlab --fit: the activations of h.0 cannot be computed again: argument 1 was changed\n\
                    the activations of h.3 cannot be computed again: x. the activations of h.0 cannot be computed again";
        assert_eq!(named(text, REFUSED), ["h.0", "h.3"]);
        assert_eq!(named(text, LEFT_OUT), [""; 0]);
    }
}
