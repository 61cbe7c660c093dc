//! Records a program for a plan: runs it for a few steps, on a simulated card or on the machine's GPU.

mod recorded_steps;

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::iter;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use memlab_predict::plan::{Recording, RecordingError};

use self::recorded_steps::RecordedSteps;
use crate::run::ExitOutcome;
use memlab_base::error::{StartError, bad_input};
use memlab_base::output::{ProgressLine, stderr_is_terminal};
use memlab_base::preload::{find_library, ld_preload};
use memlab_base::simulation::{Simulation, joined};
use memlab_base::text;

/// Placeholder for the batch size in the command.
pub const BATCH: &str = "{batch}";

/// Placeholder for the length of the samples.
pub const LENGTH: &str = "{length}";

/// Files that Python finds at its start: `sitecustomize.py`, which it runs, and modules.
type StartupFiles<'a> = &'a [(&'a str, &'a str)];

const STARTUP: StartupFiles<'static> = &[
    ("sitecustomize.py", include_str!("recording/startup.py")),
    ("_memlab_alone.py", include_str!("recording/alone.py")),
    ("_memlab_phases.py", include_str!("recording/phases.py")),
    ("_memlab_outside.py", include_str!("recording/outside.py")),
    ("_memlab_generation.py", include_str!("recording/generation.py")),
    ("_memlab_lightning.py", include_str!("recording/lightning.py")),
    IMPORTS,
    PAGING,
];

/// The file that Python runs at the start of a program whose modules are paged.
pub const STARTUP_OF_PAGED: StartupFiles<'static> =
    &[("sitecustomize.py", include_str!("fit/startup.py")), IMPORTS, PAGING];

const IMPORTS: (&str, &str) = ("_memlab_imports.py", include_str!("recording/imports.py"));
const PAGING: (&str, &str) = ("_memlab_paging.py", include_str!("fit/paging.py"));

/// Longest part of a failed program's output to show.
const SHOWN_OUTPUT_BYTES: u64 = 4000;

/// Longest part of its command line to show.
const SHOWN_COMMAND_COLUMNS: usize = 60;

/// Records a command at different batch sizes and lengths.
#[derive(Clone, Debug)]
pub struct Recorder {
    /// The command, with or without `{batch}` and `{length}`.
    pub command: Vec<OsString>,
    /// Value of `{length}`.
    pub length: Option<u64>,
    /// The simulated card that runs the program; `None`: the machine's GPU.
    pub simulation: Option<Simulation>,
    /// Number of ranks, of which only rank 0 runs; `None`: as a launcher in the command specifies.
    pub ranks: Option<u32>,
    /// Number of optimizer steps to record.
    pub steps: u32,
    /// True to record evaluation and saving after the steps.
    pub phases: bool,
    /// Longest run of the program, in seconds.
    pub seconds: f64,
    /// Folder of the traces and the output.
    pub folder: PathBuf,
    /// Further environment variables of the program.
    pub environment: Vec<(&'static str, String)>,
}

/// Returns the error for a file that is no trace, or one whose allocations cannot be replayed.
pub fn unreadable(file: &Path, error: RecordingError) -> anyhow::Error {
    match error {
        RecordingError::Read(error) => anyhow::Error::new(error),
        error => bad_input(format!("{}: {error}", file.display())),
    }
}

/// Interval at which the progress of a recording is shown.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// A running program.
pub struct Running {
    child: Child,
    started: Instant,
    /// Number of optimizer steps to record.
    steps: u32,
    /// The command line, shortened for messages.
    program: String,
    /// The batch or the length, as messages show it: " at batch 8".
    at: String,
    trace: PathBuf,
    output: PathBuf,
}

impl Recorder {
    /// Returns true if the command has the placeholder.
    pub fn takes(&self, placeholder: &str) -> bool {
        self.command.iter().any(|argument| argument.to_string_lossy().contains(placeholder))
    }

    /// Records one batch size.
    ///
    /// Replaces a simulated card that is too small by a larger one.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start) and [`Running::finish`]; also if the machine's GPU has no room.
    pub fn record(&mut self, batch: Option<u64>) -> anyhow::Result<Recording> {
        const LARGE_CARD_BYTES: u64 = 8 << 40;
        let recording = self.start(batch)?.finish()?;
        match &mut self.simulation {
            Some(simulation) if recording.ran_out_of_memory => {
                simulation.memory = Some(LARGE_CARD_BYTES);
                Ok(self.start(batch)?.finish()?)
            }
            None if recording.ran_out_of_memory => Err(bad_input(format!(
                "the GPU has no room for the program{}: choose smaller batches with --batch, or leave out --on gpu",
                if batch.is_some() { "" } else { ", and its command has no {batch}" }
            ))),
            _ => Ok(recording),
        }
    }

    /// Starts the command at a batch size.
    ///
    /// # Errors
    ///
    /// If the simulated libraries or libmemlab.so are missing, or the command cannot be started.
    pub fn start(&self, batch: Option<u64>) -> anyhow::Result<Running> {
        let filled = |argument: &OsString| filled_in(&filled_in(argument, BATCH, batch), LENGTH, self.length);
        let arguments: Vec<OsString> = self.command.iter().map(filled).collect();
        let Some((program, arguments)) = arguments.split_first() else {
            return Err(bad_input("no command is given: `memlab plan -- python train.py --batch {batch}`"));
        };
        let (name, at) = match (batch, self.length) {
            (_, Some(length)) => (format!("length-{length}"), format!(" at length {length}")),
            (Some(batch), None) => (format!("batch-{batch}"), format!(" at batch {batch}")),
            (None, None) => ("run".to_owned(), String::new()),
        };
        let (trace, output) = (self.folder.join(format!("{name}.jsonl")), self.folder.join(format!("{name}.txt")));
        let python_path = python_path(&self.folder, STARTUP)?;
        let _ = std::fs::remove_file(&trace);

        let words: Vec<String> =
            iter::once(program).chain(arguments).map(|word| word.to_string_lossy().into_owned()).collect();
        let shown = text::fit(&text::short_command(&words), SHOWN_COMMAND_COLUMNS, "…").into_owned();
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
        if self.simulation.is_some() {
            // Values that the program reads back are zeros, so the plan lists the lines that read them.
            command.env("MEMLAB_READBACKS", "1").env("MEMLAB_PLAN_SIMULATED", "1");
        }
        if self.phases {
            command.env("MEMLAB_PLAN_PHASES", "1");
        }
        if let Some(ranks) = self.ranks {
            command.env("MEMLAB_PLAN_RANKS", ranks.to_string());
        }
        command.env("PYTHONPATH", python_path);
        command.envs(self.environment.iter().map(|(name, value)| (*name, value)));
        // Makes the order of string sets the same in all recordings.
        command.env("PYTHONHASHSEED", "0");
        let file = File::create(&output)?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let child = command.spawn().map_err(|error| StartError::of(&command, &error))?;
        Ok(Running { child, started: Instant::now(), steps: self.steps, program: shown, at, trace, output })
    }
}

impl Running {
    /// Waits for the program, and reads its trace.
    ///
    /// # Errors
    ///
    /// If the program failed or used no GPU. The error includes its last output.
    pub fn finish(mut self) -> anyhow::Result<Recording> {
        let ended = ExitOutcome::of(self.wait()?);
        let recording = match Recording::read(&self.trace) {
            Ok(recording) => recording,
            Err(error) => return Err(self.failed(ended, &error)),
        };
        if ended != ExitOutcome::Code(0) && !recording.ran_out_of_memory {
            return Err(self.ended_early(ended));
        }
        Ok(recording)
    }

    /// Waits for the program, and shows its steps on a terminal.
    fn wait(&mut self) -> std::io::Result<ExitStatus> {
        if !stderr_is_terminal() {
            return self.child.wait();
        }
        let mut steps = RecordedSteps::of(&self.trace);
        let mut line = ProgressLine::default();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            line.show(&format!("recording{}: {}", self.at, steps.progress(self.started.elapsed(), self.steps)));
            thread::sleep(PROGRESS_INTERVAL);
        }
    }

    fn failed(&self, ended: ExitOutcome, error: &RecordingError) -> anyhow::Error {
        match (ended, error) {
            (ExitOutcome::Code(0), RecordingError::Read(_)) => self.error_with_output(
                "did not use a GPU. Check that its PyTorch is built for CUDA (torch.version.cuda), and that it uses the device.",
            ),
            (ExitOutcome::Code(0), error) => self.error_with_output(&format!("gives no forecast: {error}")),
            (ended, _) => self.ended_early(ended),
        }
    }

    fn ended_early(&self, ended: ExitOutcome) -> anyhow::Error {
        let ended = format!("`{}` ended with {}", self.program, ended.describe());
        match last_printed(&self.output).unwrap_or_default().trim() {
            "" => anyhow::anyhow!("{ended} and printed nothing. Check with `memlab simulate -- CMD`"),
            printed => {
                anyhow::anyhow!("{ended}. Fix the error below, or check with `memlab simulate -- CMD`:\n{printed}")
            }
        }
    }

    fn error_with_output(&self, what: &str) -> anyhow::Error {
        let printed = last_printed(&self.output).unwrap_or_default();
        let printed = match printed.trim() {
            "" => "It printed nothing.".to_owned(),
            printed => format!("It printed:\n{printed}"),
        };
        anyhow::anyhow!("the program{} {what}\n{printed}", self.at)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Writes the files below a folder. Returns the `PYTHONPATH` with which Python finds them.
///
/// # Errors
///
/// If they cannot be written.
pub fn python_path(folder: &Path, files: StartupFiles<'_>) -> std::io::Result<OsString> {
    // memlab treats files below this folder name as library files, and shows the program's lines instead.
    let startup = folder.join("startup/site-packages");
    std::fs::create_dir_all(&startup)?;
    files.iter().try_for_each(|(name, text)| std::fs::write(startup.join(name), text))?;
    Ok(joined([startup.into_os_string()].into_iter().chain(env::var_os("PYTHONPATH"))))
}

/// Replaces each placeholder in the argument by a number, if one is given.
fn filled_in(argument: &OsStr, placeholder: &str, number: Option<u64>) -> OsString {
    let Some(number) = number else { return argument.to_owned() };
    let bytes = argument.as_bytes();
    let mut filled = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some(at) = rest.windows(placeholder.len()).position(|part| part == placeholder.as_bytes()) {
        filled.extend_from_slice(&rest[..at]);
        filled.extend_from_slice(number.to_string().as_bytes());
        rest = &rest[at + placeholder.len()..];
    }
    filled.extend_from_slice(rest);
    OsString::from_vec(filled)
}

fn last_printed(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(SHOWN_OUTPUT_BYTES)))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_batch_placeholder_is_filled_in() {
        let filled =
            |argument: &str, batch| filled_in(OsStr::new(argument), BATCH, batch).to_string_lossy().into_owned();
        assert_eq!(filled("--batch={batch}", Some(8)), "--batch=8");
        assert_eq!(filled("{batch},{batch}x", Some(12)), "12,12x");
        assert_eq!(filled("{batch}", None), "{batch}");
    }
}
