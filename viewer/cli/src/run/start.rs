//! Prepares the program's environment, runs it and summarizes its traces.

use std::ffi::OsString;
use std::process::Command;
use std::sync::{Arc, Mutex};

use super::launch::ExitOutcome;
use super::notice_thread::NoticeThread;
use super::options::Options;
use super::output::Output;
use super::traces::TraceFinder;
use super::{launch, live, summary};
use memlab_base::clock::now_unix_ns;
use memlab_base::error::bad_input;
use memlab_base::{output, preload};
use memlab_tui::terminal;

/// Runs the program and returns how it ended.
///
/// `environment`: further variables of the program.
///
/// # Errors
///
/// If the program cannot be started.
pub fn run(options: &Options, environment: &[(&'static str, OsString)]) -> anyhow::Result<ExitOutcome> {
    let Some((program, arguments)) = options.command.split_first() else {
        return Err(bad_input("no command given: write it after `--`, as in `memlab run -- python train.py`"));
    };
    let library = preload::find_library()?;
    let preload = preload::ld_preload(&library, std::env::var_os("LD_PRELOAD"))?;
    let output = Output::choose(options.output.as_deref(), std::env::var_os("MEMLAB_OUTPUT"), options.force)?;
    preload::check_program(program, "run")?;
    if options.live {
        terminal::check("run without --live, or watch from another terminal with `memlab top`")?;
    }
    let mut command = Command::new(program);
    command.args(arguments).env("MEMLAB_OUTPUT", output.pattern());
    let run = run_id(options.output.is_none());
    command.env("MEMLAB_RUN", &run);
    if preload::refuses_library(program) {
        let program = program.to_string_lossy();
        output::note(format_args!(
            "{program}: is linked with musl and would not start with memlab's library: it runs unrecorded"
        ));
    } else {
        command.env("LD_PRELOAD", preload);
    }
    command.envs(options.settings());
    command.envs(options.allocator_settings());
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    let finder = Arc::new(Mutex::new(TraceFinder::new(&output, &run)));
    let mut noticing = None;
    let started = || noticing = NoticeThread::start(&options.notices, &finder, options.live);
    let ended = if options.live {
        live::run(&mut command, &finder, options.appearance.theme, started)?
    } else {
        launch::run(&mut command, &finder, started)?
    };
    let deliveries = noticing.and_then(NoticeThread::read_to_the_end);
    summary::finish(&finder, &options.command, ended);
    if let Some(deliveries) = deliveries {
        deliveries.finish();
    }
    Ok(ended)
}

/// Returns the identity of this run, which its traces contain.
///
/// Programs of one run do not replace each other's traces. A nested run belongs to the outer one, unless it has another
/// output.
fn run_id(is_within: bool) -> String {
    /// Longest outer identity that a trace's header can hold.
    const MAX_OUTER_BYTES: usize = 64;
    let own = format!("{:x}-{:x}", now_unix_ns(), std::process::id());
    match std::env::var("MEMLAB_RUN") {
        Ok(outer) if is_within && (1..=MAX_OUTER_BYTES).contains(&outer.len()) => format!("{outer}/{own}"),
        _ => own,
    }
}
