//! Asks a running program to search for what holds its memory.

use std::time::Duration;

use crate::offload::control::{Process, Status};
use memlab_base::error::bad_input;

/// Longest time that a running program may take until its main thread runs Python, and the search ends.
pub const SEARCH_TIMEOUT: Duration = Duration::from_secs(40);

/// Asks the process `pid` for a search. Returns the trace time from which it may begin, in nanoseconds, and its status.
///
/// `trace_id`: identity of its trace, if known. The pid may be reused, or belong to another machine.
///
/// # Errors
///
/// If the process cannot be reached, writes another trace, or refuses.
pub fn request_search(pid: u32, trace_id: Option<&str>) -> anyhow::Result<(u64, Status)> {
    let silent = "wait until it continues";
    let (process, status) = Process::find(pid).map_err(|error| error.into_error(pid, silent))?;
    if trace_id.is_some_and(|id| id != status.id) {
        return Err(bad_input(format!("process {pid} writes another trace")));
    }
    let time = process.search_holders().map_err(|error| error.into_error(pid, silent))?;
    Ok((time, status))
}

/// Message about a search that did not end within [`SEARCH_TIMEOUT`]; `who`: the program.
pub fn gave_up(who: &str) -> String {
    let seconds = SEARCH_TIMEOUT.as_secs();
    format!("{who} did not search within {seconds} s: its main thread runs no Python, or the search was given up")
}
