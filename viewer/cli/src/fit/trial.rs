//! Runs of a changed program on a simulated card.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memlab_base::error::bad_input;
use memlab_base::simulation::Simulation;
use memlab_predict::allocator::Settings;
use memlab_predict::plan::{Family, Program, Recording, Search};

use super::paged::{self, Moved};
use crate::recording::{Recorder, Running};

/// Number of optimizer steps in each run.
pub const STEPS: u32 = 3;

/// Longest run, in seconds.
const SECONDS: f64 = 300.0;

/// Memory of the simulated card: the unchanged program may need more than any card has.
const CARD_BYTES: u64 = 1 << 40;

/// Begin and end of the agent's messages about a module; its other messages.
const REFUSED: (&str, &str) = ("the activations of ", " cannot be computed again");
const LEFT_OUT: (&str, &str) = ("the activations of ", " are not recomputed");
const GRADIENTS_READ: &str = "gradients are not released early";
const LOSS_IN_ROWS: &str = "the loss is computed in rows";
const STATE_LEAVES: &str = " bytes of the optimizer's state leave";
const ACTIVATIONS_STAY: (&str, char) = ("activations stay on the GPU (", ')');
const COMPILED: &str = "graphs are compiled";
const LOGITS_CHANGED: &str = "the loss cannot be computed in rows";

/// Environment variables of a program.
pub type Environment = Vec<(&'static str, String)>;

/// Runs of the program on a simulated card.
pub struct Trial<'a> {
    pub command: &'a [OsString],
    pub card: &'a str,
    pub folder: &'a Path,
}

/// Result of a run with changes.
pub enum Tried {
    /// It ended normally.
    Ran(Box<Outcome>),
    /// These modules cannot be recomputed.
    Refused(Vec<String>),
    /// The program reads gradients after the step.
    ReadsGradients,
    /// Activations cannot leave the GPU, for this reason.
    KeepsActivations(String),
    /// The program changes the logits between the loss and backward.
    ChangesLogits,
    /// The program fails.
    Failed(anyhow::Error),
}

/// A program that runs on a simulated card.
pub struct Rehearsal {
    running: Running,
    /// Report of the modules that it moves to the card.
    report: PathBuf,
}

/// Findings of a run that ended normally.
pub struct Outcome {
    pub needs: CardNeeds,
    /// GPU time of a step, as [`step_ns`] returns it.
    pub step_ns: Option<u64>,
    pub recording: Arc<Recording>,
    /// A loss was computed in rows.
    pub has_loss: bool,
    /// The program runs compiled graphs.
    pub is_compiled: bool,
    /// Bytes of state of optimizers that were on the host.
    pub host_state_bytes: u64,
    /// Modules that the program moved to the card.
    pub moved: Moved,
}

/// The bytes by which the context of a real card may exceed that of the simulated one.
const CONTEXT_MARGIN: u64 = 48 << 20;

/// Bytes of a card that a run takes, context included.
#[derive(Clone, Copy, Debug)]
pub struct CardNeeds {
    /// If the card is never full.
    pub at_ease: u64,
    /// If PyTorch returns cached memory, for which it stops the GPU.
    pub least: u64,
}

impl Trial<'_> {
    /// Starts the program with these variables.
    pub fn start(&self, mut environment: Environment) -> anyhow::Result<Rehearsal> {
        environment.push(("MEMLAB_TIME", "1".to_owned()));
        // Two may run at once.
        let folder = tempfile::Builder::new().prefix("run-").tempdir_in(self.folder)?.keep();
        let report = folder.join("moved.jsonl");
        // No kernel reads the weights, and a paged model copies them in each forward.
        environment.push(("SIMGPU_DROP_COPIES", "1".to_owned()));
        environment.push((paged::MOVED, report.to_string_lossy().into_owned()));
        let (card, memory) = (Some(self.card.to_owned()), Some(CARD_BYTES));
        let recorder = Recorder {
            command: self.command.to_vec(),
            length: None,
            simulation: Some(Simulation { card, memory, devices: 1 }),
            ranks: None,
            steps: STEPS,
            phases: true,
            seconds: SECONDS,
            folder,
            environment,
        };
        Ok(Rehearsal { running: recorder.start(None)?, report })
    }
}

impl Rehearsal {
    /// Waits for the unchanged program.
    pub fn recording(self) -> anyhow::Result<Recording> {
        self.running.finish()
    }

    /// Waits for the changed program.
    pub fn finish(self, settings: &str) -> anyhow::Result<Tried> {
        let recording = match self.running.finish() {
            Ok(recording) => recording,
            Err(error) => {
                let text = error.to_string();
                if text.contains(LOGITS_CHANGED) {
                    return Ok(Tried::ChangesLogits);
                }
                let refused = named(&text, REFUSED);
                return Ok(if refused.is_empty() { Tried::Failed(error) } else { Tried::Refused(refused) });
            }
        };
        let warnings = recording.model.warnings();
        let says = |text: &str| warnings.iter().any(|warning| warning.contains(text));
        if says(GRADIENTS_READ) {
            return Ok(Tried::ReadsGradients);
        }
        let (before, after) = ACTIVATIONS_STAY;
        if let Some((_, why)) = warnings.iter().find_map(|warning| warning.split_once(before)) {
            return Ok(Tried::KeepsActivations(why.trim_end_matches(after).to_owned()));
        }
        let left_out: Vec<String> = warnings.iter().flat_map(|warning| named(warning, LEFT_OUT)).collect();
        if !left_out.is_empty() {
            return Ok(Tried::Refused(left_out));
        }
        let (has_loss, is_compiled) = (says(LOSS_IN_ROWS), says(COMPILED));
        let host_state_bytes = warnings.iter().filter_map(|warning| left_bytes(warning)).sum();
        let peaks = recording.model.peaks(recording.device);
        let rest = peaks.used_bytes.saturating_sub(peaks.reserved_bytes) + CONTEXT_MARGIN;
        let settings = Settings::parse(settings).map_err(|error| bad_input(error.to_string()))?;
        let settings = settings.for_torch(recording.torch_version());
        let recording = Arc::new(recording);
        // Fragmentation may grow for some steps more than were recorded.
        let program = Program::new(Family::of_one(Arc::clone(&recording)));
        let needs = Search::new(&program, settings, rest).needs(None);
        let at_ease = needs.planned.counters.reserved.peak + rest;
        let needs = CardNeeds { at_ease, least: needs.least };
        let (step_ns, moved) = (step_ns(&recording), Moved::read(&self.report));
        Ok(Tried::Ran(Box::new(Outcome { needs, step_ns, recording, has_loss, is_compiled, host_state_bytes, moved })))
    }
}

/// Returns the mean GPU time of a step, without the first third. On a simulated card, it is an estimate. `None`: no step has
/// ended.
///
/// Steps of several optimizers differ, so the median one would be that of one optimizer.
pub fn step_ns(recording: &Recording) -> Option<u64> {
    let work = recording.model.step_work(recording.device);
    let steps: Vec<u64> = work.iter().filter(|work| work.steps == 1).map(|work| work.nanoseconds).collect();
    let later = &steps[steps.len() / 3..];
    later.iter().sum::<u64>().checked_div(later.len() as u64)
}

/// Returns the bytes in the agent's message about state that leaves.
fn left_bytes(warning: &str) -> Option<u64> {
    warning.split_once(STATE_LEAVES)?.0.rsplit(' ').next()?.parse().ok()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_found_in_the_agents_message() {
        assert_eq!(left_bytes("--fit: 4096 bytes of the optimizer's state leave"), Some(4096));
        assert_eq!(left_bytes("--fit: the loss is computed in rows"), None);
    }

    #[test]
    fn modules_are_found_in_the_agents_messages() {
        let text = "RuntimeError: memlab --fit: the activations of h.0 cannot be computed again: argument 1 was changed\n\
                    the activations of h.3 cannot be computed again: x. the activations of h.0 cannot be computed again";
        assert_eq!(named(text, REFUSED), ["h.0", "h.3"]);
        assert_eq!(named(text, LEFT_OUT), [""; 0]);
    }
}
