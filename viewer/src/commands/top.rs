//! `memlab top`: the dashboard on a program that is already running.

use std::fmt::Write as _;

use crate::app::App;
use crate::control::{self, Status, Unreachable};
use crate::fault::bad_input;
use crate::feed::{Feed, Followed, Source};
use crate::theme::{Palette, Theme};
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
    let mut app = App::new(Theme::detect(theme), "opening the trace…");
    session::run(&mut app, &feed, None)?;
    Ok(())
}

fn one(pid: u32) -> anyhow::Result<Status> {
    control::status(pid).map_err(|error| match error {
        Unreachable::NoSocket | Unreachable::Stale => match owner(pid) {
            None => bad_input(format!("there is no process {pid}: `memlab ps` lists those that can be watched")),
            Some(uid) if uid != own_uid() => {
                bad_input(format!("process {pid} belongs to another user ({uid}): ask them to watch it, or become them"))
            }
            Some(_) => bad_input(format!(
                "process {pid} is not traced, or has not used CUDA yet: start it with `memlab run -- CMD`; `memlab ps` lists \
                 those that can be watched"
            )),
        },
        Unreachable::NotOurs(path) => bad_input(format!(
            "process {pid}: {} belongs to another user, or others can write to it: it is not trusted",
            path.display()
        )),
        Unreachable::Silent => bad_input(format!(
            "process {pid} does not answer: it may be stopped; `memlab view FILE` shows its trace nevertheless"
        )),
        Unreachable::Refused(reason) => bad_input(format!("process {pid} refuses: {reason}")),
        Unreachable::Failed(error) => anyhow::anyhow!("process {pid} cannot be asked: {error}"),
    })
}

fn own_uid() -> u32 {
    // SAFETY: cannot fail and touches no memory.
    unsafe { libc::geteuid() }
}

/// Whose process it is; `None`: there is no such process.
fn owner(pid: u32) -> Option<u32> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(format!("/proc/{pid}")).ok().map(|found| found.uid())
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
