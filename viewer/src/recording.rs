//! Recording a program for a plan: it runs for a few steps, on a simulated card or on the GPU that is there.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use memlab_plan::{Recording, RecordingError};

use crate::error::{CannotStart, bad_input};
use crate::preload::{find_library, ld_preload};
use crate::run::Ended;
use crate::simulation::{Simulation, joined};

/// What is replaced by the batch size in the command.
const PLACEHOLDER: &str = "{batch}";

/// Run by Python at its start.
const STARTUP: &str = include_str!("recording/startup.py");

/// How much of what a program printed is shown if it failed.
const SHOWN: u64 = 4000;

/// A command that is recorded.
#[derive(Clone, Debug)]
pub struct Recorder {
    /// The command, with or without `{batch}`.
    pub command: Vec<OsString>,
    /// The card that it runs on; `None`: the GPU that is there.
    pub simulation: Option<Simulation>,
    /// How many optimizer steps are recorded.
    pub steps: u32,
    /// After how many seconds the program ends at the latest.
    pub seconds: f64,
    /// Where traces and output are put.
    pub folder: PathBuf,
}

/// A program that runs.
pub struct Running {
    child: Child,
    batch: Option<u64>,
    trace: PathBuf,
    output: PathBuf,
}

impl Recorder {
    /// Whether the command says where the batch size goes.
    pub fn takes_batch(&self) -> bool {
        self.command.iter().any(|argument| argument.to_string_lossy().contains(PLACEHOLDER))
    }

    /// Starts the command at a batch size.
    ///
    /// # Errors
    ///
    /// If the simulated libraries or libmemlab.so are missing, or the command cannot be started.
    pub fn start(&self, batch: Option<u64>) -> anyhow::Result<Running> {
        let arguments: Vec<OsString> = self.command.iter().map(|argument| filled_in(argument, batch)).collect();
        let Some((program, arguments)) = arguments.split_first() else {
            return Err(bad_input("no command is given: `memlab plan -- python train.py --batch {batch}`"));
        };
        let name = batch.map_or("run".to_owned(), |batch| format!("batch-{batch}"));
        let (trace, output) = (self.folder.join(format!("{name}.jsonl")), self.folder.join(format!("{name}.txt")));
        let startup = self.folder.join("startup");
        std::fs::create_dir_all(&startup)?;
        std::fs::write(startup.join("sitecustomize.py"), STARTUP)?;
        let _ = std::fs::remove_file(&trace);

        let mut command = Command::new(program);
        command.args(arguments);
        if let Some(simulation) = &self.simulation {
            simulation.apply(&mut command)?;
        }
        let preloaded = command.get_envs().find(|(name, _)| *name == "LD_PRELOAD").and_then(|(_, value)| value);
        let before = preloaded.map(OsStr::to_owned).or_else(|| env::var_os("LD_PRELOAD"));
        command.env("LD_PRELOAD", ld_preload(&find_library()?, before)?);
        command.env("MEMLAB_OUTPUT", &trace).env("MEMLAB_PLAN_STEPS", self.steps.to_string());
        command.env("MEMLAB_PLAN_SECONDS", self.seconds.to_string());
        // On a simulated card they are zeros: a plan names their lines.
        if self.simulation.is_some() {
            command.env("MEMLAB_READBACKS", "1");
        }
        command.env("PYTHONPATH", joined([startup.into_os_string()].into_iter().chain(env::var_os("PYTHONPATH"))));
        // Sets of strings have the same order in all recordings.
        command.env("PYTHONHASHSEED", "0");
        let file = File::create(&output)?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let child = command.spawn().map_err(|error| CannotStart::of(&command, &error))?;
        Ok(Running { child, batch, trace, output })
    }
}

impl Running {
    /// Waits for the program, and reads its trace.
    ///
    /// # Errors
    ///
    /// If it failed, or used no GPU: what it printed last is said.
    pub fn finish(mut self) -> anyhow::Result<Recording> {
        let ended = Ended::of(self.child.wait()?);
        let recording = match Recording::read(&self.trace) {
            Ok(recording) => recording,
            Err(error) => return Err(self.failed(ended, &error)),
        };
        if ended != Ended::Code(0) && !recording.ran_out_of_memory {
            return Err(self.said(&format!("ended with {}", ended.describe())));
        }
        Ok(recording)
    }

    fn failed(&self, ended: Ended, error: &RecordingError) -> anyhow::Error {
        match (ended, error) {
            (Ended::Code(0), RecordingError::Read(_)) => self.said(
                "did not use a GPU. Has its PyTorch been built for CUDA (torch.version.cuda), and does it use the device?",
            ),
            (Ended::Code(0), error) => self.said(&format!("cannot be planned with: {error}")),
            (ended, _) => self.said(&format!("ended with {}", ended.describe())),
        }
    }

    fn said(&self, what: &str) -> anyhow::Error {
        let batch = self.batch.map_or(String::new(), |batch| format!(" at batch {batch}"));
        let printed = last_printed(&self.output).unwrap_or_default();
        let printed = match printed.trim() {
            "" => "It printed nothing.".to_owned(),
            printed => format!("It printed:\n{printed}"),
        };
        anyhow::anyhow!("the program{batch} {what}\n{printed}")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn filled_in(argument: &OsStr, batch: Option<u64>) -> OsString {
    let Some(batch) = batch else { return argument.to_owned() };
    let bytes = argument.as_bytes();
    let mut filled = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some(at) = rest.windows(PLACEHOLDER.len()).position(|part| part == PLACEHOLDER.as_bytes()) {
        filled.extend_from_slice(&rest[..at]);
        filled.extend_from_slice(batch.to_string().as_bytes());
        rest = &rest[at + PLACEHOLDER.len()..];
    }
    filled.extend_from_slice(rest);
    OsString::from_vec(filled)
}

fn last_printed(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(SHOWN)))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_batch_is_filled_in_wherever_it_is_asked_for() {
        let filled = |argument: &str, batch| filled_in(OsStr::new(argument), batch).to_string_lossy().into_owned();
        assert_eq!(filled("--batch={batch}", Some(8)), "--batch=8");
        assert_eq!(filled("{batch},{batch}x", Some(12)), "12,12x");
        assert_eq!(filled("{batch}", None), "{batch}");
    }
}
