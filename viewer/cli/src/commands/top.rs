//! `memlab top`: the dashboard on a running program.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use memlab_base::arguments::{Appearance, pid};
use memlab_base::error::bad_input;
use memlab_base::{output, text};
use memlab_follow::feed::{Feed, Roster, Source};
use memlab_follow::offload::control::{self, Status};
use memlab_tui::app::App;
use memlab_tui::config::Config;
use memlab_tui::{session, terminal};

/// Interval between searches for a process.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Options of `memlab top`.
#[derive(Clone, Copy, Debug, Args)]
pub struct Options {
    /// The process id [default: the only recorded process, or all ranks of the only job].
    #[arg(value_parser = pid)]
    pid: Option<u32>,
    /// Wait until the process exists.
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    appearance: Appearance,
}

/// Shows the dashboard on the process.
///
/// # Errors
///
/// If no such process exists, or several could be meant.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let Options { pid, wait, appearance } = *options;
    let hint = "use `memlab ps` for a table, or `memlab view FILE --once` for one picture as text";
    if wait {
        terminal::check(hint)?;
        wait_for(pid);
    }
    let statuses = match pid {
        Some(pid) => vec![one(pid)?],
        None => choose()?,
    };
    terminal::check(hint)?;
    let traces: Vec<PathBuf> = statuses.into_iter().map(|status| status.trace).collect();
    let mut feed = Feed::start(Source::Traces(Roster::open(&traces)?));
    let config = Config::read_or_warn();
    let mut app = App::new(config.theme(appearance.theme), "opening the trace…");
    app.configure(&config);
    session::run(&mut app, &mut feed, None)?;
    Ok(())
}

/// Waits until the process `pid`, or any, can be watched, or never can be.
fn wait_for(pid: Option<u32>) {
    let mut said = false;
    // The ranks of a job appear one after the other. Wait until no more appear.
    let mut before = 0;
    loop {
        let (is_settled, now) = match pid {
            Some(pid) => match control::status(pid) {
                Err(error) => (!error.is_absent() || control::owner(pid) != Some(control::own_uid()), 0),
                Ok(_) => (true, 1),
            },
            None => (false, control::discover().iter().filter(|(_, answer)| answer.is_ok()).count()),
        };
        if is_settled || now > 0 && now == before {
            return;
        }
        before = now;
        if !said && now == 0 {
            said = true;
            let whom = pid.map_or_else(|| "a recorded process".to_owned(), |pid| format!("process {pid} to use CUDA"));
            output::note(format_args!("waiting for {whom} (Ctrl-C stops)"));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

fn one(pid: u32) -> anyhow::Result<Status> {
    control::status(pid).map_err(|error| error.into_error(pid, "`memlab view FILE` can still show its trace"))
}

/// Returns the only process, or the ranks of the only job.
fn choose() -> anyhow::Result<Vec<Status>> {
    let statuses: Vec<Status> = control::discover().into_iter().filter_map(|(_, answer)| answer.ok()).collect();
    let Some(first) = statuses.first() else {
        return Err(bad_input(
            "no recorded process is running: start one with `memlab run -- CMD`, or use `memlab top --wait`",
        ));
    };
    let one_job = statuses.iter().all(|status| status.rank.is_some() && status.command == first.command);
    let mut ranks: Vec<_> = statuses.iter().map(|status| status.rank).collect();
    ranks.sort_unstable();
    ranks.dedup();
    if statuses.len() == 1 || one_job && ranks.len() == statuses.len() {
        return Ok(statuses);
    }
    let mut message = "several recorded processes are running: choose one with `memlab top PID`".to_owned();
    for status in &statuses {
        let rank = status.rank.map(|rank| format!(" (rank {rank})")).unwrap_or_default();
        let _ = write!(message, "\n  {:>8}  {}{rank}", status.pid, text::short_command(&status.command));
    }
    Err(bad_input(message))
}
