//! `memlab run`: starts a program with libmemlab.so preloaded, stays out of its way, and says at the end where its
//! memory went.

mod ending;
mod keyboard;
mod launch;
mod live;
mod output;
mod preload;
mod pty;
mod summary;
mod traces;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};

use crate::error::bad_input;
use crate::text;
use crate::theme::Palette;
pub use launch::Ended;
use output::Output;
use traces::TraceFinder;

/// What to run, and how.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Where the trace goes: a file, a pattern or a folder.
    pub output: Option<PathBuf>,
    /// Whether a trace that lies there may be replaced.
    pub force: bool,
    /// Whether the dashboard takes the screen.
    pub live: bool,
    /// Its colours.
    pub theme: Option<Palette>,
    /// What the library is told about moving and limiting memory, by the names of its variables.
    pub settings: Vec<(&'static str, String)>,
    /// The program and its arguments.
    pub command: Vec<OsString>,
}

/// Runs it; how it ended is how this process is to end.
///
/// # Errors
///
/// If it cannot be started.
pub fn run(options: &Options) -> anyhow::Result<Ended> {
    let Some((program, arguments)) = options.command.split_first() else {
        return Err(bad_input("no command given: write it after `--`, as in `memlab run -- python train.py`"));
    };
    let library = preload::find_library()?;
    let preload = preload::ld_preload(&library, std::env::var_os("LD_PRELOAD"))?;
    let output = Output::choose(options.output.as_deref(), std::env::var_os("MEMLAB_OUTPUT"), options.force)?;
    preload::check_program(program)?;
    if options.live {
        crate::terminal::check("leave --live away, or watch from another terminal with `memlab top`")?;
    }
    let mut command = Command::new(program);
    command.args(arguments).env("MEMLAB_OUTPUT", output.pattern());
    // What programs of this run write stays, where the next of them is to write under the same name. A run within a run is
    // part of it, unless it has a name of its own.
    if options.output.is_some() || std::env::var_os("MEMLAB_RUN").is_none() {
        command.env("MEMLAB_RUN", crate::clock::now_unix_ns().to_string());
    }
    if preload::refuses_library(program) {
        eprintln!(
            "memlab: {}: is linked with musl and would not start with memlab's library: it runs without",
            text::clean(&program.to_string_lossy())
        );
    } else {
        command.env("LD_PRELOAD", preload);
    }
    command.envs(options.settings.iter().map(|(name, value)| (name, value)));
    let finder = Arc::new(Mutex::new(TraceFinder::new(&output)));
    let ended = if options.live {
        live::run(&mut command, &finder, options.theme)?
    } else {
        launch::run(&mut command, &finder)?
    };
    summary::finish(&finder, &options.command, ended);
    Ok(ended)
}
