//! `memlab run --fit`: chooses changes with which an unmodified program fits into less GPU memory, and tries them on a
//! simulated card before the program starts.

mod changes;
mod code;
mod paged;
mod search;
mod trial;

use std::ffi::OsString;
use std::fmt;
use std::path::Path;

use clap::ValueEnum;
use memlab_base::error::bad_input;
use memlab_base::{output, text, trace_files};
use memlab_follow::cards::{CardStatus, cards};
use memlab_predict::advice::MeasuredCosts;
use memlab_predict::plan::Recording;
use memlab_protocol::status::OnLimit;
use memlab_units::format::{size, time_spent};

use search::{Attempt, Fitting, variables};
use tempfile::TempDir;
use trial::{STEPS, Trial};

use crate::allocator_settings::AllocatorSettings;
use crate::recording::{STARTUP_OF_PAGED, python_path, unreadable};
use crate::run::Options;

/// The card of a machine without one.
const DEFAULT_CARD: &str = "h100";

/// What changes may alter, besides nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Allowed {
    /// The last bits of results: operations may be fused or summed in another way.
    Rounding,
}

/// A program that is to fit.
pub struct Request<'a> {
    pub command: &'a [OsString],
    /// Most memory on the card; `None`: what is free on it.
    pub size: Option<u64>,
    /// Modules and other changes that are left out.
    pub without: &'a [String],
    /// True if results may change in their last bits.
    pub allows_rounding: bool,
    /// The unchanged program; `None`: it is recorded on a simulated card.
    pub from: Option<Recording>,
}

/// The changes with which a program fits.
pub struct Fitted {
    /// The command, shortened.
    program: String,
    /// Memory that the unchanged program takes of the card.
    taken: u64,
    /// `None`: it fits as it is.
    chosen: Option<Chosen>,
}

/// Changes that were tried, and fit.
struct Chosen {
    attempt: Attempt,
    /// Most memory on the card.
    target: u64,
    /// Most memory that PyTorch's allocator reserves.
    budget: u64,
    /// GPU time of a step of the unchanged program.
    unchanged_ns: Option<u64>,
    settings: AllocatorSettings,
}

/// Variables with which a program fits, and the folder of files that they name.
#[derive(Default)]
pub struct FittedEnvironment {
    pub variables: Vec<(&'static str, OsString)>,
    _folder: Option<TempDir>,
}

/// Returns the environment for `memlab run`; empty without `--fit`, or if the program fits as it is.
///
/// # Errors
///
/// As [`choose`].
pub fn environment(options: &Options) -> anyhow::Result<FittedEnvironment> {
    let Some(size) = options.fit else { return Ok(FittedEnvironment::default()) };
    let fitted = choose(Request {
        command: &options.command,
        size,
        without: &options.fit_without,
        allows_rounding: options.fit_allow.is_some(),
        from: options.fit_from.as_deref().map(recorded).transpose()?,
    })?;
    output::note(format_args!("{fitted}. Starting it"));
    if let Some(code) = fitted.code().filter(|_| options.fit_print) {
        output::note(format_args!("the changes as code:\n{code}"));
    }
    fitted.environment()
}

/// Chooses the changes with which a program fits.
///
/// # Errors
///
/// If the program cannot be recorded, or fits with no selection.
pub fn choose(request: Request<'_>) -> anyhow::Result<Fitted> {
    let all = cards();
    let card = all.first();
    let Some(target) = request.size.or_else(|| card.and_then(free)) else {
        return Err(bad_input(
            "this machine has no GPU whose memory is known: name a size, as in `memlab run --fit 16GiB`",
        ));
    };
    let known = card.and_then(|card| simgpu_cards::find(&card.name).ok());
    let model = known.map_or_else(|| simgpu_cards::find(DEFAULT_CARD), Ok)?;
    let folder = tempfile::Builder::new().prefix("memlab-fit-").tempdir()?;
    let trial = Trial { command: request.command, card: model.name, folder: folder.path() };
    let recording = request.from;
    match recording {
        Some(_) => output::note(format_args!("trying changes on a simulated {} …", model.device_name)),
        None => output::note(format_args!("recording {STEPS} steps on a simulated {} …", model.device_name)),
    }
    let fitting = Fitting {
        trial,
        program: program(request.command),
        target,
        settings: AllocatorSettings::today(),
        excluded: request.without.iter().cloned().collect(),
        allows_rounding: request.allows_rounding,
        measured: recording.as_ref().map(MeasuredCosts::of).unwrap_or_default(),
        tried: Vec::new(),
    };
    fitting.choose(recording)
}

/// Reads a trace of the unchanged program.
///
/// # Errors
///
/// If the file is not a trace whose allocations can be replayed.
pub fn recorded(trace: &Path) -> anyhow::Result<Recording> {
    trace_files::check_exists(trace, "fit")?;
    Recording::read(trace).map_err(|error| unreadable(trace, error))
}

impl Fitted {
    /// Returns the environment in which the program fits; empty if it fits as it is.
    ///
    /// # Errors
    ///
    /// If the files that page modules cannot be written.
    pub fn environment(&self) -> anyhow::Result<FittedEnvironment> {
        let Some(Chosen { attempt, target, budget, settings, .. }) = &self.chosen else {
            return Ok(FittedEnvironment::default());
        };
        let decision = attempt.changes.applied(attempt.needs.at_ease.min(*target));
        let variables = variables(&attempt.changes, &decision, Some(*budget), settings);
        let mut variables: Vec<_> = variables.into_iter().map(|(name, value)| (name, OsString::from(value))).collect();
        variables.push(("MEMLAB_LIMIT", format!("{target}B").into()));
        variables.push(("MEMLAB_ON_LIMIT", OnLimit::Spill.as_str().into()));
        let mut folder = None;
        if attempt.changes.paged().next().is_some() {
            let created = tempfile::Builder::new().prefix("memlab-page-").tempdir()?;
            variables.push(("PYTHONPATH", python_path(created.path(), STARTUP_OF_PAGED)?));
            folder = Some(created);
        }
        Ok(FittedEnvironment { variables, _folder: folder })
    }

    /// Returns the changes as code; `None` if none are necessary.
    pub fn code(&self) -> Option<String> {
        let chosen = self.chosen.as_ref()?;
        Some(code::of(&chosen.attempt.changes, chosen.budget, &chosen.settings))
    }
}

/// A sentence with the changes and what they cost.
impl fmt::Display for Fitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fitted { program, taken, chosen } = self;
        write!(f, "{program} takes {} of the card", size(*taken))?;
        let Some(Chosen { attempt, target, unchanged_ns, .. }) = chosen else {
            return write!(f, ", which fits");
        };
        let needed = size(attempt.needs.at_ease.min(*target));
        write!(f, ". Fits in {needed} with {}", attempt.changes.described())?;
        match (unchanged_ns, attempt.step_ns) {
            // Waits for the weights of paged modules are not simulated.
            (Some(unchanged), Some(changed)) if *unchanged > 0 && attempt.changes.paged().next().is_none() => {
                let (added, step) = (time_spent(changed.saturating_sub(*unchanged)), time_spent(*unchanged));
                write!(f, ": about +{added} of GPU time on a step of {step}")
            }
            _ => Ok(()),
        }
    }
}

fn free(card: &CardStatus) -> Option<u64> {
    Some(card.total_bytes?.saturating_sub(card.used_bytes?))
}

fn program(command: &[OsString]) -> String {
    let words: Vec<String> = command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    text::short_command(&words)
}
