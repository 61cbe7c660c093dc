//! The command line, and the exit code.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};

use crate::commands::{
    self, advise, completions, config, diff, doctor, export, holders, limit, offload, plan, ps, report, restore, serve,
    simulate, top, view,
};
use crate::fit;
use crate::run;
use memlab_base::arguments::moments_help;
use memlab_base::{error, output, preload};

/// Where did my GPU memory go, and how do I get it back?
///
/// memlab records every byte of GPU memory that a program allocates, by Python line and by layer. It shows this memory live
/// and afterwards. The program needs no change.
#[derive(Debug, Parser)]
#[command(name = "memlab", version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  memlab run -- python train.py            record a run and print a summary
  memlab run --live -- python train.py     record a run and show the dashboard
  memlab top                               show the dashboard on a running program
  memlab serve                             serve a web page and Prometheus metrics of the programs being recorded
  memlab run --offload -- python train.py  record a run whose memory can be offloaded
  memlab offload 4242                      offload its GPU memory to host memory; the program waits
  memlab restore 4242                      restore it; the program continues
  memlab report memlab-train-4242.jsonl    report the memory by line and layer
  memlab report --html a.html a.jsonl      write the report as a web page
  memlab holders 4242                      show the objects that keep its memory alive
  memlab advise memlab-train-4242.jsonl    suggest changes that lower its memory
  memlab run --fit 16GiB -- python train.py
                                           make a training fit into less memory, with the same results
  memlab diff a.jsonl b.jsonl              compare two runs
  memlab export a.jsonl --format csv -o a.csv
                                           write a table of allocations
  memlab view memlab-train-4242.jsonl      show the dashboard on a recorded run
  memlab plan --card 24GiB -- python train.py --batch {batch}
                                           forecast the largest batch that fits, without a GPU
  memlab simulate --card a100-40gb -- python train.py
                                           run on a simulated GPU
  LD_PRELOAD=/path/to/libmemlab.so python train.py
                                           record without this command (memlab doctor prints the path)";

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a program and record its GPU memory.
    #[command(after_help = run::HELP)]
    Run(Box<run::Options>),
    /// Show the dashboard on a running program.
    Top(top::Options),
    /// Show the dashboard on recorded traces, finished or still growing.
    #[command(after_help = view::help())]
    View(view::Options),
    /// Serve a web page and Prometheus metrics of the programs that memlab is recording.
    #[command(after_help = serve::HELP)]
    Serve(serve::Options),
    /// List this user's processes that memlab is recording.
    Ps(ps::Options),
    /// Offload a running program's GPU memory to host memory; the program waits until you restore all of it.
    #[command(after_help = offload::HELP)]
    Offload(offload::Options),
    /// Restore a program's GPU memory to the devices; the program continues.
    Restore(restore::Options),
    /// Limit the GPU memory of a running program, or show its limits.
    Limit(limit::Options),
    /// Show the objects that keep the GPU memory of a program alive.
    #[command(after_help = holders::HELP)]
    Holders(holders::Options),
    /// Run a command on a simulated GPU, without a real one.
    #[command(after_help = simulate::HELP)]
    Simulate(simulate::Options),
    /// Forecast a program's GPU memory and the largest batch that fits; needs no GPU.
    #[command(after_help = plan::HELP)]
    Plan(Box<plan::Options>),
    /// Show the preferences of the dashboard and where they are stored.
    Config(config::Options),
    /// Check what works on this machine and explain what does not; paste the output into bug reports.
    #[command(after_help = doctor::HELP)]
    Doctor(doctor::Options),
    /// Print a script that lets a shell complete memlab's command line.
    #[command(after_help = completions::HELP)]
    Completions(completions::Options),
    /// Report where the memory of a recorded run went.
    #[command(after_help = moments_help())]
    Report(report::Options),
    /// Suggest changes that lower a program's memory, computed from a recorded run without running the program.
    #[command(after_help = advise::HELP)]
    Advise(advise::Options),
    /// Choose changes with which a program fits into less GPU memory, and show them.
    #[command(after_help = commands::fit::HELP)]
    Fit(commands::fit::Options),
    /// Show what changed between two runs or moments.
    #[command(after_help = diff::help())]
    Diff(diff::Options),
    /// Convert a recorded run to another format: csv, json, flame graphs, Perfetto, memory_viz, speedscope.
    #[command(after_help = moments_help())]
    Export(export::Options),
}

/// Returns the definition of the command line, for completions, man pages and tests.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs the command.
pub fn main() -> ExitCode {
    let cli = Cli::try_parse().unwrap_or_else(|error| in_words(with_suggestion(error)).exit());
    let result = match cli.command {
        Command::Run(options) => fit::environment(&options)
            .and_then(|fitted| run::run(&options, &fitted.variables))
            .map(|ended| ended.exit_like_child()),
        Command::Top(options) => top::run(&options),
        Command::View(options) => view::run(&options),
        Command::Serve(options) => serve::run(&options),
        Command::Ps(options) => ps::run(&options),
        Command::Offload(options) => offload::run(&options),
        Command::Restore(options) => restore::run(&options),
        Command::Limit(options) => limit::run(&options),
        Command::Holders(options) => holders::run(&options),
        Command::Simulate(options) => simulate::run(&options),
        Command::Plan(options) => plan::run(&options),
        Command::Config(options) => config::run(&options),
        Command::Doctor(options) => doctor::run(&options),
        Command::Completions(options) => completions::run(&options, &mut command()),
        Command::Report(options) => report::run(&options),
        Command::Advise(options) => advise::run(&options),
        Command::Fit(options) => commands::fit::run(&options),
        Command::Diff(options) => diff::run(&options),
        Command::Export(options) => export::run(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of the output has read enough.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::error(&format!("{error:#}"));
            ExitCode::from(error::exit_code(&error))
        }
    }
}

/// Suggests the subcommand or option that was probably meant.
fn with_suggestion(mut error: clap::Error) -> clap::Error {
    if error.kind() == ErrorKind::UnknownArgument {
        // `-- --ouput` would run a program named `--ouput`.
        error.remove(ContextKind::Suggested);
    }
    let unknown = match (error.get(ContextKind::InvalidSubcommand), error.get(ContextKind::SuggestedSubcommand)) {
        (Some(ContextValue::String(unknown)), None) => unknown.clone(),
        _ => return error,
    };
    // clap's own suggestions miss names that differ in one letter.
    let command = command();
    let names = command.get_subcommands().map(clap::Command::get_name);
    let near: Vec<_> = names.filter(|name| strsim::osa_distance(name, &unknown) == 1).map(str::to_owned).collect();
    if !near.is_empty() {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(near));
    } else if preload::check_program(OsStr::new(&unknown), "run").is_ok() || Path::new(&unknown).is_file() {
        let tip = format!("to record a program, write `memlab run -- {}`", preload::as_command(&unknown));
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

/// Rewrites the error for an invalid or out-of-range number. clap only passes on the parser's message.
fn in_words(error: clap::Error) -> clap::Error {
    let (Some(ContextValue::String(argument)), Some(ContextValue::String(value))) =
        (error.get(ContextKind::InvalidArg), error.get(ContextKind::InvalidValue))
    else {
        return error;
    };
    let Some(source) = std::error::Error::source(&error) else { return error };
    let wanted = if source.is::<std::num::ParseIntError>() {
        "a whole number".to_owned()
    } else if source.is::<std::num::ParseFloatError>() {
        "a number".to_owned()
    } else if let Some(range) = source.to_string().strip_prefix(&format!("{value} is not in ")) {
        numbers_in(range)
    } else {
        return error;
    };
    let message =
        format!("invalid value '{value}' for '{argument}': write {wanted}\n\nFor more information, try '--help'.\n");
    clap::Error::raw(error.kind(), message)
}

/// Describes a range printed by clap.
///
/// An end that is the type's maximum is left out.
fn numbers_in(range: &str) -> String {
    let (from, to) = range.split_once("..").unwrap_or((range, ""));
    match to.trim_start_matches('=').parse::<u64>() {
        Ok(to) if to < u64::from(u32::MAX) => format!("a number from {from} to {to}"),
        _ => format!("a number of at least {from}"),
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let kind = error
        .downcast_ref::<io::Error>()
        .map(io::Error::kind)
        .or_else(|| error.downcast_ref::<serde_json::Error>().and_then(serde_json::Error::io_error_kind));
    kind == Some(io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        command().debug_assert();
        // Release builds of clap do not check that group names are unique. A struct's name is the name of its group.
        for subcommand in command().get_subcommands() {
            let names: Vec<_> = subcommand.get_groups().map(clap::ArgGroup::get_id).collect();
            let distinct: HashSet<_> = names.iter().collect();
            assert_eq!(distinct.len(), names.len(), "{}: {names:?}", subcommand.get_name());
        }
    }

    #[test]
    fn a_misspelt_subcommand_or_option_is_named() {
        let said =
            |arguments: &[&str]| with_suggestion(Cli::try_parse_from(arguments).unwrap_err()).render().to_string();
        assert!(said(&["memlab", "rn"]).contains("a similar subcommand exists: 'run'"));
        assert!(said(&["memlab", "advice", "a.jsonl"]).contains("'advise'"));
        // GIVEN a program in place of a subcommand, THEN the error suggests `memlab run`
        assert!(said(&["memlab", "sh", "a.sh"]).contains("write `memlab run -- sh`"));
        assert!(!said(&["memlab", "no-such-thing"]).contains("memlab run"));
        // GIVEN an unknown option before the program, THEN it is not taken for the program
        for (command, wrong, right) in
            [("run", "--ouput", "'--output'"), ("simulate", "--crd", "'--card'"), ("plan", "--crd", "'--card'")]
        {
            let said = said(&["memlab", command, wrong, "x", "--", "python"]);
            assert!(said.contains(right) && !said.contains("-- --"), "{said}");
        }
        // AND options after the program belong to the program
        assert!(Cli::try_parse_from(["memlab", "run", "python", "a.py", "--ouput"]).is_ok());
    }

    #[test]
    fn a_value_that_is_no_number_is_explained() {
        let said = |line: &str| {
            let error = Cli::try_parse_from(line.split(' ')).unwrap_err();
            in_words(error).render().to_string().lines().next().unwrap_or_default().to_owned()
        };
        // GIVEN text in place of a process id, a number out of its range, and text in place of a number
        for command in ["offload", "restore", "limit", "top"] {
            let said = said(&format!("memlab {command} tv.py"));
            assert!(said.ends_with("write a process ID; `memlab ps` lists them"), "{said}");
        }
        for (line, wanted) in [
            ("memlab simulate --devices 0 true", "for '--devices <N>': write a number from 1 to 16"),
            ("memlab plan --ranks 0 true", "write a number of at least 1"),
            ("memlab run --time --time-every 0 true", "write a number of at least 1"),
            ("memlab plan --steps x true", "write a whole number"),
            ("memlab plan --seconds x true", "write a number"),
            ("memlab diff --device x a.jsonl b.jsonl", "write a whole number"),
        ] {
            // THEN the error names what to write
            assert!(said(line).ends_with(wanted), "{}", said(line));
        }
    }
}
