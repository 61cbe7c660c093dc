//! The command line: what can be asked for, and what the shell is told at the end.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::app::Screen;
use crate::theme::Palette;
use crate::{commands, fault, report, run, text};

/// Where did my GPU memory go, and how do I get it back?
///
/// memlab records every byte of GPU memory that a program takes, by Python line and by layer, without a change to the
/// program, and shows it live and afterwards.
#[derive(Debug, Parser)]
#[command(name = "memlab", version, after_help = EXAMPLES, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  memlab run -- python train.py            record a run, sum it up at the end
  memlab run --live -- python train.py     the same under the dashboard
  memlab top                               the dashboard on a program already running
  memlab report memlab-train-4242.jsonl    where the memory was, to read
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
        #[command(flatten)]
        look: Look,
    },
    /// Show the dashboard on recorded traces, also while they grow.
    View(View),
    /// List the traced processes of this user.
    Ps {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Say where the memory of a recorded run was.
    Report {
        /// The trace: .jsonl or .jsonl.zst; several are told one after the other.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// As JSON, to script; several traces as an array.
        #[arg(long)]
        json: bool,
    },
}

const RUN_HELP: &str = "\
Examples:
  memlab run -- python train.py --epochs 3
  memlab run -o traces/ -- torchrun --nproc_per_node 8 train.py
  memlab run -o 'run-%r.jsonl' --live -- python train.py

In FILE %p is the process number, %r the rank, %n the program's name, %h the host.
The exit code is the program's; a program ended by a signal ends memlab by the same signal.
127: there is no such program; 126: it cannot be executed; 2: memlab was asked for something it cannot do.";

#[derive(Debug, Args)]
struct Run {
    /// Where the trace goes [default: $MEMLAB_OUTPUT, else memlab-%n-%p.jsonl]; a folder: there, under that name.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Show the dashboard while it runs.
    #[arg(long, overrides_with = "no_live")]
    live: bool,
    /// Leave the terminal to the program (default).
    #[arg(long)]
    no_live: bool,
    #[command(flatten)]
    look: Look,
    /// The program and its arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

#[derive(Debug, Args)]
struct View {
    /// The traces; several (the ranks of a job) go into one view.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print one screen as text and end.
    #[arg(long)]
    once: bool,
    /// The size of that screen [default: the terminal's, else 120x40].
    #[arg(long, value_name = "COLUMNSxROWS", value_parser = parse_size)]
    size: Option<(u16, u16)>,
    /// The screen to begin with.
    #[arg(long, value_enum, default_value = "overview")]
    screen: ScreenName,
    /// Show the moment of the peak.
    #[arg(long)]
    at_peak: bool,
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

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ScreenName {
    Overview,
    Lines,
    Layers,
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
            let options = run::Options {
                output: options.output,
                live: options.live,
                theme: options.look.theme,
                command: options.command,
            };
            run::run(&options).map(|ended| ended.imitate())
        }
        Command::Top { pid, look } => commands::top::run(pid, look.theme),
        Command::View(options) => commands::view::run(&commands::view::Options {
            files: options.files,
            once: options.once,
            svg: options.svg,
            size: options.size,
            screen: match options.screen {
                ScreenName::Overview => Screen::Overview,
                ScreenName::Lines => Screen::Lines,
                ScreenName::Layers => Screen::Layers,
            },
            at_peak: options.at_peak,
            theme: options.look.theme,
        }),
        Command::Ps { json } => commands::ps::run(json),
        Command::Report { files, json } => report::run(&files, json),
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
            ExitCode::from(fault::exit_code(&error))
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
    fn sizes_are_columns_and_rows() {
        assert_eq!(parse_size("120x40"), Ok((120, 40)));
        assert!(parse_size("0x5").is_err() && parse_size("12").is_err() && parse_size("axb").is_err());
    }
}
