//! The options of `memlab run`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum, ValueHint};

use crate::allocator_settings::AllocatorSettings;
use memlab_base::arguments::{Appearance, checked_limits, on_limit, positive_size};
use memlab_follow::notices;
use memlab_protocol::status::OnLimit;

/// Help text after the options.
pub const HELP: &str = "\
Examples:
  memlab run -- python train.py --epochs 3
  memlab run -o traces/ -- torchrun --nproc_per_node 8 train.py
  memlab run -o 'run-%r.jsonl' --live -- python train.py
  memlab run --notify 'mail -s $MEMLAB_NOTICE ada' -- python train.py

In FILE, %p is the process id, %r the rank, %n the program's name, %h the host.

With --live the program gets its own terminal, as large as the Output screen. Press Enter on that screen to type to the program \
(input(), breakpoint()), Esc to return to memlab. The program has no mouse, images or clipboard on that screen, and Ctrl-Z cannot \
stop it. Press q, then d, to close the dashboard and give the program your terminal.

--notify runs CMD with sh, in the background, when the program runs out of memory, when memory grows from step to step, and with \
--notify-free when little is free. It runs once for each of these, process and device; for growth, again each time the growth of \
all leaks on the device has doubled. The environment of CMD contains MEMLAB_NOTICE (out-of-memory, leak or low-memory), MEMLAB_MESSAGE, MEMLAB_NEXT, MEMLAB_PID, MEMLAB_RANK, MEMLAB_HOST, \
MEMLAB_DEVICE, MEMLAB_BYTES, MEMLAB_STEPS and MEMLAB_TRACE. CMD reads the same fields as JSON on standard input. \
--webhook sends that JSON.

memlab exits with the exit code of the program; if a signal ended the program, the same signal ends memlab. Its own exit codes: \
127 if the program was not found, 126 if it cannot be executed, 2 if memlab cannot do what was requested.";

/// Time at which host memory for offloads is pinned.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Offload {
    /// Pins host memory at the first offload.
    On,
    /// Pins host memory in the background, as the program's GPU memory grows: the first offload is then as fast as later ones.
    Ready,
}

impl Offload {
    fn setting(self) -> &'static str {
        match self {
            Self::On => "1",
            Self::Ready => "ready",
        }
    }
}

/// Properties of a program that changes may alter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Allowed {
    /// The last bits of results: operations may be fused or summed in another way.
    Rounding,
}

/// Options of `memlab run`.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// The trace [default: $MEMLAB_OUTPUT, else memlab-%n-%p.jsonl]. A folder gets a trace with the default name.
    #[arg(short, long, value_name = "FILE")]
    pub(super) output: Option<PathBuf>,
    /// Replace an existing trace with that name.
    #[arg(long)]
    pub(super) force: bool,
    /// Show the dashboard while the program runs. Its Output screen shows the program's output.
    #[arg(long, overrides_with = "no_live")]
    pub live: bool,
    /// Leave the terminal to the program (default).
    #[arg(long)]
    no_live: bool,
    /// Record GPU operations and their durations, by line and layer (with NVIDIA's CUPTI).
    #[arg(long)]
    time: bool,
    /// Record GPU time in 1 of every N optimizer steps; slows the program less if its GPU waits for the host.
    #[arg(long, requires = "time", value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    time_every: Option<u64>,
    /// Write each kernel and copy of the last SECONDS to the trace, or of the whole run (all) [default: 5].
    #[arg(long, requires = "time", value_name = "SECONDS|all", value_parser = timeline)]
    timeline: Option<String>,
    /// Make the program's GPU memory movable, for `memlab offload` and `memlab restore`.
    ///
    /// Without =HOW: on.
    #[arg(long, value_enum, value_name = "HOW", num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    offload: Option<Offload>,
    /// Maximum GPU memory of the program, on each device or by device (such as 8GiB, or 0:8GiB,1:4GiB).
    #[arg(long, value_name = "SIZE", value_parser = checked_limits)]
    limit: Option<String>,
    /// Action at the limit [default: oom].
    #[arg(long, value_parser = on_limit(), requires = "limit", value_name = "WHAT")]
    on_limit: Option<OnLimit>,
    /// Action when the card is full [default: oom]. spill: the program continues with memory on the host, which memlab then
    /// makes room for.
    #[arg(long, value_parser = on_limit(), value_name = "WHAT")]
    on_oom: Option<OnLimit>,
    /// Make the program fit into SIZE of GPU memory, context included, without changing its results.
    ///
    /// memlab records three steps on a simulated card, chooses changes, and tries them before it starts the program.
    /// Without SIZE: what is free on the card.
    #[arg(long, value_name = "SIZE", value_parser = positive_size, num_args = 0..=1, conflicts_with = "limit")]
    pub fit: Option<Option<u64>>,
    /// Leave out a change: a module that is not recomputed (such as blocks.3), gradients (not released early), loss (not in
    /// rows), state (not on the host), activations (not off the GPU) or weights (not paged). Can be repeated.
    #[arg(long, value_name = "CHANGE", requires = "fit")]
    pub fit_without: Vec<String>,
    /// Allow changes that alter the last bits of results, if others do not suffice.
    #[arg(long, value_name = "WHAT", requires = "fit")]
    pub fit_allow: Option<Allowed>,
    /// A trace of the unchanged program, with its GPU times if it has any. memlab then does not record it.
    #[arg(long, value_name = "TRACE", requires = "fit")]
    pub fit_from: Option<PathBuf>,
    /// Print the changes as code, too.
    #[arg(long, requires = "fit")]
    pub fit_print: bool,
    /// The most host memory for offloaded memory.
    #[arg(long, value_name = "SIZE", value_parser = positive_size)]
    host_max: Option<u64>,
    #[command(flatten)]
    pub(super) notices: notices::Options,
    #[command(flatten)]
    pub(super) appearance: Appearance,
    /// The program and its arguments.
    #[arg(trailing_var_arg = true, value_hint = ValueHint::CommandWithArguments, required = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

impl Options {
    /// The library's settings, as environment variables.
    pub(super) fn settings(&self) -> Vec<(&'static str, String)> {
        let time = self.time.then(|| ("MEMLAB_TIME", "1".to_owned()));
        let time_every = self.time_every.map(|every| ("MEMLAB_TIME_EVERY", every.to_string()));
        let timeline = self.timeline.clone().map(|timeline| ("MEMLAB_TIMELINE", timeline));
        let offload = self.offload.map(|offload| ("MEMLAB_OFFLOAD", offload.setting().to_owned()));
        let limit = self.limit.clone().map(|limit| ("MEMLAB_LIMIT", limit));
        let on_limit = self.on_limit.map(|on_limit| ("MEMLAB_ON_LIMIT", on_limit.as_str().to_owned()));
        let on_oom = self.on_oom.map(|on_oom| ("MEMLAB_ON_OOM", on_oom.as_str().to_owned()));
        let host_max = self.host_max.map(|bytes| ("MEMLAB_HOST_MAX", format!("{bytes}B")));
        [time, time_every, timeline, offload, limit, on_limit, on_oom, host_max].into_iter().flatten().collect()
    }

    /// The setting with which PyTorch's allocator can return a part of a segment, if memory may spill.
    pub(super) fn allocator_settings(&self) -> Option<(&'static str, String)> {
        let spills = [self.on_limit, self.on_oom].contains(&Some(OnLimit::Spill));
        spills.then(AllocatorSettings::today).map(|settings| (settings.variable, settings.value))
    }
}

fn timeline(text: &str) -> Result<String, String> {
    let is_seconds = text.parse().is_ok_and(|seconds: f64| (0.0..=1e9).contains(&seconds));
    if is_seconds || text == "all" {
        Ok(text.to_owned())
    } else {
        Err("neither a number of seconds nor 'all'".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Run {
        #[command(flatten)]
        options: Options,
    }

    fn run(options: &str) -> Result<Options, clap::Error> {
        Run::try_parse_from(format!("run {options}").split_whitespace()).map(|run| run.options)
    }

    #[test]
    fn options_after_the_command_are_the_commands() {
        let options = run("-o x -- python -o y --live").unwrap();
        assert_eq!((options.command.len(), options.live), (4, false));
        assert!(run("").is_err());
    }

    #[test]
    fn options_that_move_and_limit_memory_become_settings_of_the_library() {
        let settings = |options: &str| run(&format!("{options} -- python")).map(|options| options.settings());
        assert_eq!(settings("").unwrap(), []);
        assert_eq!(
            settings(
                "--time --time-every 8 --timeline all --offload --limit 0:8GiB,1:4GiB --on-limit spill --on-oom spill --host-max 64GiB"
            )
            .unwrap(),
            [
                ("MEMLAB_TIME", "1".to_owned()),
                ("MEMLAB_TIME_EVERY", "8".to_owned()),
                ("MEMLAB_TIMELINE", "all".to_owned()),
                ("MEMLAB_OFFLOAD", "1".to_owned()),
                ("MEMLAB_LIMIT", "0:8GiB,1:4GiB".to_owned()),
                ("MEMLAB_ON_LIMIT", "spill".to_owned()),
                ("MEMLAB_ON_OOM", "spill".to_owned()),
                ("MEMLAB_HOST_MAX", format!("{}B", 64_u64 << 30)),
            ]
        );
        assert_eq!(settings("--offload=ready").unwrap(), [("MEMLAB_OFFLOAD", "ready".to_owned())]);
        assert!(settings("--offload=never").is_err());
        assert!(settings("--time --timeline 2.5").is_ok() && settings("--time --timeline much").is_err());
        assert!(settings("--timeline 2").is_err(), "it needs --time");
        assert!(settings("--time-every 8").is_err() && settings("--time --time-every 0").is_err());
        let error = settings("--limit much").unwrap_err().to_string();
        assert!(error.contains("not a size"), "{error}");
        assert!(settings("--on-limit oom").is_err(), "it needs --limit");
        assert!(settings("--limit 1GiB --on-limit unknown").is_err());
    }
}
