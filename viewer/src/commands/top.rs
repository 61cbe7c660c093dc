//! `memlab top`: the dashboard on a program that is already running.

use std::fmt::Write as _;

use crate::app::App;
use crate::config::Config;
use crate::control::{self, Status};
use crate::fault::bad_input;
use crate::feed::{Feed, Followed, Source};
use crate::theme::Palette;
use crate::{session, terminal, text};

/// Shows the process `pid`, or the only one there is, or all ranks of the only job there is.
///
/// # Errors
///
/// If there is no such process, or several to choose from.
pub fn run(pid: Option<u32>, theme: Option<Palette>) -> anyhow::Result<()> {
    let statuses = match pid {
        Some(pid) => vec![one(pid)?],
        None => choose()?,
    };
    terminal::check("use `memlab ps` for a table, or `memlab view FILE --once` for one picture as text")?;
    let mut followed = Vec::new();
    for status in &statuses {
        followed.push(Followed::open(&status.trace)?);
    }
    let feed = Feed::start(Source::Traces(followed));
    let config = Config::read_or_say();
    let mut app = App::new(config.theme(theme), "opening the trace…");
    config.apply(&mut app);
    session::run(&mut app, &feed, None)?;
    Ok(())
}

fn one(pid: u32) -> anyhow::Result<Status> {
    control::status(pid).map_err(|error| error.into_error(pid, "`memlab view FILE` shows its trace nevertheless"))
}

/// The only process, or the ranks of the only job.
fn choose() -> anyhow::Result<Vec<Status>> {
    let statuses: Vec<Status> = control::discover().into_iter().filter_map(|(_, answer)| answer.ok()).collect();
    let Some(first) = statuses.first() else {
        return Err(bad_input("no traced process of yours is running: start one with `memlab run -- CMD`"));
    };
    let one_job = statuses.iter().all(|status| status.rank.is_some() && status.command == first.command);
    let mut ranks: Vec<_> = statuses.iter().map(|status| status.rank).collect();
    ranks.sort_unstable();
    ranks.dedup();
    if statuses.len() == 1 || one_job && ranks.len() == statuses.len() {
        return Ok(statuses);
    }
    let mut message = "several traced processes are running: choose one with `memlab top PID`".to_owned();
    for status in &statuses {
        let rank = status.rank.map(|rank| format!(" (rank {rank})")).unwrap_or_default();
        let _ = write!(message, "\n  {:>8}  {}{rank}", status.pid, text::short_command(&status.command));
    }
    Err(bad_input(message))
}
