//! The command line: what can be asked for, and what the shell is told at the end.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use memlab_trace::{Category, Scope};

use crate::category::{category_list, parse_category};
use crate::commands::export::Format;
use crate::commands::limit;
use crate::moment::Moment;
use crate::offload::control::OnLimit;
use crate::offload::selection::Criteria;
use crate::screen::Screen;
use crate::theme::Palette;
use crate::{commands, error, format, report, run, text};

/// Where did my GPU memory go, and how do I get it back?
///
/// memlab records every byte of GPU memory that a program takes, by Python line and by layer, without a change to the
/// program, and shows it live and afterwards.
#[derive(Debug, Parser)]
#[command(name = "memlab", version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  memlab run -- python train.py            record a run, sum it up at the end
  memlab run --live -- python train.py     the same under the dashboard
  memlab top                               the dashboard on a program already running
  memlab run --offload -- python train.py  record a run whose memory can be moved
  memlab offload 4242                      its GPU memory to host memory; it waits
  memlab restore 4242                      and back; it goes on
  memlab report memlab-train-4242.jsonl    where the memory was, to read
  memlab report --html a.html a.jsonl      the same as a page, to look at
  memlab diff a.jsonl b.jsonl              what changed from one run to another
  memlab export a.jsonl --format csv -o a.csv
  memlab view memlab-train-4242.jsonl      the dashboard on a recorded run
  LD_PRELOAD=libmemlab.so python train.py  record without this command";

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a program and record its GPU memory.
    #[command(after_help = RUN_HELP)]
    Run(Run),
    /// Show the dashboard on a program that is already running.
    Top {
        /// The process; without it, the only one there is.
        pid: Option<u32>,
        /// Wait until there is one.
        #[arg(long)]
        wait: bool,
        #[command(flatten)]
        look: Look,
    },
    /// Show the dashboard on recorded traces, also while they grow.
    #[command(after_help = view_help())]
    View(View),
    /// List the traced processes of this user.
    Ps {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Move a running program's GPU memory to host memory; it waits until it is restored.
    #[command(after_help = OFFLOAD_HELP)]
    Offload(Offload),
    /// Bring a program's GPU memory back to the devices; it goes on.
    Restore(Restore),
    /// Limit the GPU memory of a running program, or show its limits.
    Limit(Limit),
    /// Show what the dashboard is told to prefer, and where.
    Config {
        /// The preferences in force, as the file that says them (default).
        #[arg(long)]
        print: bool,
        /// Where the file is, or would be.
        #[arg(long, conflicts_with = "print")]
        path: bool,
    },
    /// Say where the memory of a recorded run was.
    #[command(after_help = MOMENTS)]
    Report {
        /// The trace: .jsonl or .jsonl.zst; several are told one after the other. With a moment after an @: what was held then.
        /// A folder: the newest trace in it [default: the newest here].
        #[arg(value_name = "FILE[@MOMENT]")]
        files: Vec<PathBuf>,
        /// What was held at this moment, in place of the whole run.
        #[arg(long, value_name = "MOMENT")]
        at: Option<Moment>,
        /// As JSON, to script; several traces as an array.
        #[arg(long)]
        json: bool,
        /// As a page to look at in a browser, of one trace; needs no network [-: standard output].
        #[arg(long, value_name = "OUT", conflicts_with = "json")]
        html: Option<PathBuf>,
        /// Tell lines of libraries too: the innermost of yours and theirs [default: where yours only call them].
        #[arg(long, value_name = "WHEN", num_args = 0..=1, require_equals = true, default_missing_value = "always")]
        libraries: Option<Libraries>,
    },
    /// Say what changed from one run, or moment, to another.
    #[command(after_help = DIFF_HELP)]
    Diff(Diff),
    /// Write a moment of a recorded run, or the run over time, in a format of other programs.
    #[command(after_help = MOMENTS)]
    Export(Export),
}

/// When lines of libraries are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Libraries {
    /// Where the user's lines only call them.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl Libraries {
    fn scope(self) -> Option<Scope> {
        match self {
            Self::Auto => None,
            Self::Always => Some(Scope::Libraries),
            Self::Never => Some(Scope::Users),
        }
    }
}

const MOMENTS: &str = "\
Moments:
  peak           when most was allocated
  end            after all there is
  oom, oom:2     the first out-of-memory, the second
  step:12        the end of optimizer step 12; step:0 is the first
  12.5s, 850ms, 1m30s, 1:30
                 a time since the trace began";

const DIFF_HELP: &str = "\
Examples:
  memlab diff before.jsonl after.jsonl
  memlab diff run.jsonl@step:3 run.jsonl@step:10
  memlab diff --at end --json a.jsonl b.jsonl

A and B are traces, each with a moment after an @ if it is not that of --at:
  peak           when most was allocated
  end            after all there is
  oom, oom:2     the first out-of-memory, the second
  step:12        the end of optimizer step 12; step:0 is the first
  12.5s, 850ms, 1m30s, 1:30
                 a time since the trace began";

#[derive(Debug, Args)]
struct Diff {
    /// The trace before.
    #[arg(value_name = "A[@MOMENT]")]
    before: PathBuf,
    /// The trace after.
    #[arg(value_name = "B[@MOMENT]")]
    after: PathBuf,
    /// As JSON, to script.
    #[arg(long)]
    json: bool,
    /// The moment to compare.
    #[arg(long, value_name = "MOMENT", default_value = "peak")]
    at: Moment,
    /// The device [default: in each the one with the highest peak].
    #[arg(long, value_name = "N")]
    device: Option<i32>,
    /// Tell lines of libraries too: the innermost of yours and theirs [default: where yours only call them].
    #[arg(long, value_name = "WHEN", num_args = 0..=1, require_equals = true, default_missing_value = "always")]
    libraries: Option<Libraries>,
}

#[derive(Debug, Args)]
struct Export {
    /// The trace: .jsonl or .jsonl.zst.
    file: PathBuf,
    /// The format.
    #[arg(long, value_enum)]
    format: Format,
    /// Where to write it; -: standard output.
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// The moment [default: peak; of perfetto: end].
    #[arg(long, value_name = "MOMENT")]
    at: Option<Moment>,
    /// One device alone, and its peak [default: all, at the highest peak of any; of flamegraph the one that has it, of
    /// speedscope each at its own].
    #[arg(long, value_name = "N")]
    device: Option<i32>,
    /// Of memory_viz: how many of the latest events it has.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    events: usize,
    /// Name lines of libraries too, in formats that name one line (csv, json, perfetto): the innermost of yours and theirs
    /// [default: where yours only call them].
    #[arg(long, value_name = "WHEN", num_args = 0..=1, require_equals = true, default_missing_value = "always")]
    libraries: Option<Libraries>,
}

const RUN_HELP: &str = "\
Examples:
  memlab run -- python train.py --epochs 3
  memlab run -o traces/ -- torchrun --nproc_per_node 8 train.py
  memlab run -o 'run-%r.jsonl' --live -- python train.py

In FILE %p is the process number, %r the rank, %n the program's name, %h the host.
With --live the program has a terminal of its own, as large as the Output screen. Enter on that screen types to it (input(),
breakpoint()) until Esc, and d after q leaves it the whole terminal. It gets no mouse, pictures or clipboard there, and cannot
be stopped by Ctrl-Z: without --live it has the terminal that memlab was started on.

The exit code is the program's; a program ended by a signal ends memlab by the same signal.
127: there is no such program; 126: it cannot be executed; 2: memlab was asked for something it cannot do.";

#[derive(Debug, Args)]
struct Run {
    /// Where the trace goes [default: $MEMLAB_OUTPUT, else memlab-%n-%p.jsonl]; a folder: there, under that name.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace a trace that is there already under that name.
    #[arg(long)]
    force: bool,
    /// Show the dashboard while it runs; what the program asks is answered on its Output screen.
    #[arg(long, overrides_with = "no_live")]
    live: bool,
    /// Leave the terminal to the program (default).
    #[arg(long)]
    no_live: bool,
    /// Have memlab place the program's GPU memory, so that it can be offloaded and restored.
    #[arg(long)]
    offload: bool,
    /// The most GPU memory that it may have: of each device, or by device [8GiB; 0:8GiB,1:4GiB].
    #[arg(long, value_name = "SIZE", value_parser = limit::checked_limits)]
    limit: Option<String>,
    /// At the limit: allocations fail, or memory is taken on the host, where kernels reach it slowly.
    #[arg(long, value_enum, requires = "limit", value_name = "WHAT")]
    on_limit: Option<OnLimit>,
    /// The most host memory that memlab may take for offloaded memory.
    #[arg(long, value_name = "SIZE", value_parser = limit::size)]
    host_max: Option<u64>,
    #[command(flatten)]
    look: Look,
    /// The program and its arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Run {
    /// What the library is told, by the names of its variables.
    fn settings(&self) -> Vec<(&'static str, String)> {
        let offload = self.offload.then(|| ("MEMLAB_OFFLOAD", "1".to_owned()));
        let limit = self.limit.clone().map(|limit| ("MEMLAB_LIMIT", limit));
        let on_limit = self.on_limit.map(|on_limit| ("MEMLAB_ON_LIMIT", on_limit.as_str().to_owned()));
        let host_max = self.host_max.map(|bytes| ("MEMLAB_HOST_MAX", format!("{bytes}B")));
        [offload, limit, on_limit, host_max].into_iter().flatten().collect()
    }
}

const OFFLOAD_HELP: &str = "\
The program must have been started with `memlab run --offload`; of any other the CUDA driver (570 or newer) moves all \
there is, as with --full. Ctrl-C leaves an operation to complete by itself.

With --category, --layer or --idle only what meets all of them is moved, and the program goes on: kernels then reach that \
memory over the bus, which is slow. Memory moves in whole pages of 2 MiB: a page goes if at least half of what lives in it \
is wanted. Nobody can see which memory kernels touch, so that --idle is inferred: what was handed out longer ago, to layers \
(or lines, outside layers) that have asked for no memory since; and no optimizer state or gradients if steps were made since.

Examples:
  memlab offload 4242                                  all of it; the program waits
  memlab offload 4242 --category optimizer_state       the optimizer's, between its steps
  memlab offload 4242 --layer encoder --layer embed    two parts of a model
  memlab offload 4242 --idle 1m                        what seems to be in nobody's use";

#[derive(Debug, Args)]
struct Offload {
    /// The process.
    pid: u32,
    /// How long to wait for the program to come to a halt.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_timeout)]
    timeout: Duration,
    /// Everything, the CUDA context too, with the CUDA driver's checkpoint; of any CUDA program.
    #[arg(long, conflicts_with_all = ["category", "layer", "idle"])]
    full: bool,
    #[arg(long, value_name = "NAME", value_parser = parse_category, help = category_help())]
    category: Vec<Category>,
    /// Only memory of this layer and the layers inside it; may be given again for another.
    #[arg(long, value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    layer: Vec<String>,
    /// Only memory that has lain idle for so long, as far as can be inferred.
    #[arg(long, value_name = "TIME", value_parser = parse_timeout)]
    idle: Option<Duration>,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct Restore {
    /// The process.
    pid: u32,
    /// How long to wait for the program to come to a halt.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_timeout)]
    timeout: Duration,
    /// While the device is full, try again until there is room.
    #[arg(long)]
    wait: bool,
    /// Give the pinned host memory back to the system; the next offload then takes longer.
    #[arg(long)]
    free_host: bool,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct Limit {
    /// The process.
    pid: u32,
    /// The most that it may have [8GiB], or off; without it, the limits are shown.
    size: Option<limit::Size>,
    /// Of one device [default: all].
    #[arg(long, value_name = "N")]
    device: Option<u32>,
    /// At the limit: allocations fail, or memory is taken on the host, where kernels reach it slowly.
    #[arg(long, value_enum, requires = "size", value_name = "WHAT")]
    on_limit: Option<OnLimit>,
}

/// What `--category` is for.
fn category_help() -> String {
    format!("Only memory of this category; may be given again for another [{}]", category_list())
}

fn parse_timeout(text: &str) -> Result<Duration, String> {
    match format::parse_duration(text) {
        Some(ns @ 1..) => Ok(Duration::from_nanos(ns)),
        _ => Err("write it as 30s, 1m30s or 500ms".to_owned()),
    }
}

/// What `/` and `--filter` understand.
fn view_help() -> String {
    format!(
        "\
Filters, all of which a row must meet:
  attn                its name contains it; upper and lower case are the same
  /h\\.[0-3]\\./         its name matches the regular expression
  size>1MiB           it holds more: > >= < <= =
  layer:h.3           it is of that layer, or of one inside it
  category:activation it holds memory of that category
  line:model.py, function:forward, class:Linear, kind:free, phase:backward, device:1
                      that text of it contains this; a layer has the lines that asked for what it holds
  !word, !layer:h.3   it does not meet that

Categories:
  {}",
        category_list()
    )
}

#[derive(Debug, Args)]
struct View {
    /// The traces; several (the ranks of a job) go into one view. A folder: the newest in it, with the other ranks of its job
    /// [default: those here].
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print one screen as text and end.
    #[arg(long)]
    once: bool,
    /// The size of that screen [default: the terminal's, else 120x40].
    #[arg(long, value_name = "COLUMNSxROWS", value_parser = parse_size)]
    size: Option<(u16, u16)>,
    /// The screen to begin with.
    #[arg(long, value_enum)]
    screen: Option<Screen>,
    /// The moment to show: 12.5s, 1:30, step:12, peak, oom, end.
    #[arg(long, value_name = "MOMENT")]
    at: Option<String>,
    /// Keep of lines, layers, blocks and events only what this finds, as `/` does in the dashboard.
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Write one screen as an SVG picture and end.
    #[arg(long, value_name = "FILE", hide = true)]
    svg: Option<PathBuf>,
    #[command(flatten)]
    look: Look,
}

#[derive(Debug, Args)]
struct Look {
    /// Colours; NO_COLOR switches them off.
    #[arg(long, value_enum, env = "MEMLAB_THEME")]
    theme: Option<Palette>,
}

fn parse_size(text: &str) -> Result<(u16, u16), String> {
    let (columns, rows) = text.split_once(['x', 'X']).ok_or("write it as columns and rows: 120x40")?;
    let parse = |number: &str| number.parse().ok().filter(|number| (1..=1000).contains(number));
    match (parse(columns), parse(rows)) {
        (Some(columns), Some(rows)) => Ok((columns, rows)),
        _ => Err("columns and rows are numbers from 1 to 1000: 120x40".to_owned()),
    }
}

/// Does what the command line says.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        Command::Run(options) => {
            let settings = options.settings();
            let options = run::Options {
                settings,
                output: options.output,
                force: options.force,
                live: options.live,
                theme: options.look.theme,
                command: options.command,
            };
            run::run(&options).map(|ended| ended.imitate())
        }
        Command::Top { pid, wait, look } => commands::top::run(pid, wait, look.theme),
        Command::View(options) => commands::view::run(&commands::view::Options {
            files: options.files,
            once: options.once,
            svg: options.svg,
            size: options.size,
            screen: options.screen,
            at: options.at,
            filter: options.filter,
            theme: options.look.theme,
        }),
        Command::Ps { json } => commands::ps::run(json),
        Command::Offload(options) => commands::offload::run(&commands::offload::Options {
            pid: options.pid,
            timeout: options.timeout,
            full: options.full,
            criteria: Criteria {
                categories: options.category,
                layers: options.layer,
                idle_ns: options.idle.map(|idle| idle.as_nanos() as u64),
            },
            json: options.json,
        }),
        Command::Restore(options) => commands::restore::run(&commands::restore::Options {
            pid: options.pid,
            timeout: options.timeout,
            wait: options.wait,
            free_host: options.free_host,
            json: options.json,
        }),
        Command::Limit(limit) => commands::limit::run(limit.pid, limit.size, limit.device, limit.on_limit),
        Command::Config { path, .. } => commands::config::run(path),
        Command::Report { files, at, html: Some(out), libraries, .. } => {
            report::run_html(&files, at, &out, libraries.and_then(Libraries::scope))
        }
        Command::Report { files, at, json, html: None, libraries } => {
            report::run(&files, at, json, libraries.and_then(Libraries::scope))
        }
        Command::Diff(options) => commands::diff::run(&commands::diff::Options {
            before: options.before,
            after: options.after,
            json: options.json,
            at: options.at,
            device: options.device,
            scope: options.libraries.and_then(Libraries::scope),
        }),
        Command::Export(options) => commands::export::run(&commands::export::Options {
            file: options.file,
            format: options.format,
            output: options.output,
            at: options.at,
            device: options.device,
            scope: options.libraries.and_then(Libraries::scope),
            events: options.events,
        }),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read our output has read enough.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let message = format!("{error:#}");
            let lines: Vec<_> = message.lines().map(text::clean).collect();
            let (red, plain) = if colored() { ("\u{1b}[1;31m", "\u{1b}[0m") } else { ("", "") };
            eprintln!("{red}memlab:{plain} {}", lines.join("\n"));
            ExitCode::from(error::exit_code(&error))
        }
    }
}

fn colored() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let kind = error
        .downcast_ref::<std::io::Error>()
        .map(std::io::Error::kind)
        .or_else(|| error.downcast_ref::<serde_json::Error>().and_then(serde_json::Error::io_error_kind));
    kind == Some(std::io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn options_after_the_command_are_the_commands() {
        let cli = Cli::try_parse_from(["memlab", "run", "-o", "x", "--", "python", "-o", "y", "--live"]).unwrap();
        let Command::Run(run) = cli.command else { panic!() };
        assert_eq!((run.command.len(), run.live), (4, false));
        assert!(Cli::try_parse_from(["memlab", "run"]).is_err());
    }

    #[test]
    fn what_moves_and_limits_memory_is_told_to_the_library() {
        let run = |options: &str| {
            let cli = Cli::try_parse_from(format!("memlab run {options} -- python").split_whitespace())?;
            let Command::Run(run) = cli.command else { panic!() };
            Ok::<_, clap::Error>(run.settings())
        };
        assert_eq!(run("").unwrap(), []);
        assert_eq!(
            run("--offload --limit 0:8GiB,1:4GiB --on-limit spill --host-max 64GiB").unwrap(),
            [
                ("MEMLAB_OFFLOAD", "1".to_owned()),
                ("MEMLAB_LIMIT", "0:8GiB,1:4GiB".to_owned()),
                ("MEMLAB_ON_LIMIT", "spill".to_owned()),
                ("MEMLAB_HOST_MAX", format!("{}B", 64_u64 << 30)),
            ]
        );
        let error = run("--limit much").unwrap_err().to_string();
        assert!(error.contains("not a size"), "{error}");
        assert!(run("--on-limit oom").is_err(), "it needs --limit");
        assert!(run("--limit 1GiB --on-limit unknown").is_err());
    }

    #[test]
    fn sizes_are_columns_and_rows() {
        assert_eq!(parse_size("120x40"), Ok((120, 40)));
        assert!(parse_size("0x5").is_err() && parse_size("12").is_err() && parse_size("axb").is_err());
    }
}
