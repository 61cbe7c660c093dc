//! `memlab run --live`: the program on a pseudo-terminal, the dashboard on this terminal.

use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH};
use signal_hook::iterator::Signals;

use super::keyboard::Keyboard;
use super::launch::{ExitOutcome, lock};
use super::pty::PtyProgram;
use super::traces::TraceFinder;
use memlab_base::error::StartError;
use memlab_base::output;
use memlab_base::theme::Palette;
use memlab_follow::feed::{Feed, Source};
use memlab_tui::app::{App, output_size};
use memlab_tui::config::Config;
use memlab_tui::session::{self, ExitReason, Program};

/// Interval between checks of the program.
const POLL_INTERVAL: Duration = Duration::from_millis(30);
/// Rows of the program's output that remain on the terminal afterwards.
const LAST_ROWS: usize = 20;

/// Runs `command` under the dashboard until the program has ended and the user has left the dashboard.
///
/// Calls `started` once the program runs.
pub fn run(
    command: &mut Command,
    finder: &Arc<Mutex<TraceFinder>>,
    theme: Option<Palette>,
    started: impl FnOnce(),
) -> anyhow::Result<ExitOutcome> {
    let config = Config::read_or_warn();
    let (columns, rows) = crossterm::terminal::size().unwrap_or((80, 24));
    let (pane_rows, pane_columns) = output_size(columns, rows);
    let mut program =
        PtyProgram::start(command, pane_rows, pane_columns).map_err(|error| StartError::of(command, &error))?;
    lock(finder).adopt(program.pid());
    started();
    let found = finder.clone();
    let mut feed = Feed::start(Source::Appearing(Box::new(move || {
        lock(&found).scan().iter().map(|found| found.path.clone()).collect()
    })));
    let mut app = App::new(config.theme(theme), "waiting for the program to use CUDA…").with_program(program.screen());
    app.configure(&config);
    app.output.takes_keys = program.takes_input();
    let left = session::run(&mut app, &mut feed, Some(&mut program));
    drop(feed);
    program.pass_on(LAST_ROWS);
    match left {
        Ok(ExitReason::Signal(signal)) => program.signal(signal),
        Ok(ExitReason::Quit | ExitReason::Detach) => {}
        // The program continues without the dashboard.
        Err(error) => output::note(format_args!("the dashboard ended: {error}")),
    }
    Ok(wait(&mut program))
}

/// Waits for a program that now prints to the terminal.
///
/// Forwards signals and input.
fn wait(program: &mut PtyProgram) -> ExitOutcome {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH, SIGCONT]).ok();
    let mut keyboard = Keyboard::take();
    if let Ok((columns, rows)) = crossterm::terminal::size() {
        program.resize(rows, columns);
    }
    loop {
        if let Some(ended) = program.try_end() {
            return ended;
        }
        for signal in signals.iter_mut().flat_map(Signals::pending) {
            match signal {
                SIGWINCH => {
                    if let Ok((columns, rows)) = crossterm::terminal::size() {
                        program.resize(rows, columns);
                    }
                }
                SIGCONT => keyboard.iter().for_each(Keyboard::apply),
                signal => program.signal(signal),
            }
        }
        match &mut keyboard {
            Some(keyboard) => program.input(&keyboard.read(POLL_INTERVAL)),
            None => std::thread::sleep(POLL_INTERVAL),
        }
    }
}
