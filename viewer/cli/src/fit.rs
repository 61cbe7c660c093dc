//! `memlab run --fit`: chooses changes with which an unmodified program fits into less GPU memory, and tries them on a
//! simulated card before the program starts.

mod changes;
mod code;
mod fitted;
mod paged;
mod search;
mod trial;

use std::ffi::OsString;
use std::path::Path;

use memlab_base::error::bad_input;
use memlab_base::{output, text, trace_files};
use memlab_follow::cards::{CardStatus, cards};
use memlab_predict::advice::MeasuredCosts;
use memlab_predict::plan::Recording;
use memlab_protocol::status::kept_free;

use fitted::{Fitted, FittedEnvironment};
use search::Fitting;
use trial::{STEPS, Trial};

use crate::allocator_settings::AllocatorSettings;
use crate::recording::unreadable;
use crate::run::Options;

/// The card of a machine without one.
const DEFAULT_CARD: &str = "h100";

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

/// Bytes of a card that a program can have, if it may spill.
fn free(card: &CardStatus) -> Option<u64> {
    let total = card.total_bytes?;
    Some(total.saturating_sub(card.used_bytes?).saturating_sub(kept_free(total)))
}

fn program(command: &[OsString]) -> String {
    let words: Vec<String> = command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    text::short_command(&words)
}
