//! `memlab holders`: what keeps the GPU memory of a program alive.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use memlab_trace::{Follower, HeldView, Model, load_whole};

use memlab_base::error::bad_input;
use memlab_base::file_names::FileNames;
use memlab_base::findings::holder::{no_search, search_failed};
use memlab_base::json::write_pretty;
use memlab_base::text::Style;
use memlab_base::{output, progress, trace_files};
use memlab_follow::holders::{SEARCH_TIMEOUT, gave_up, request_search};
use memlab_report::holders;

/// The help after the options.
pub const HELP: &str = "\
Examples:
  memlab holders 4242                      search the running process 4242 now
  memlab holders memlab-train-4242.jsonl   show the last search of a recorded run

A recorded program is searched when its memory grows, when it runs out of memory, and on request. The search runs in a copy \
of the process: the program stands still for some milliseconds. `report` names what keeps growing memory.";

/// Time between two looks at the trace.
const POLL: Duration = Duration::from_millis(50);

/// Options of `memlab holders`.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// A process id, or a trace (.jsonl or .jsonl.zst). A folder means the newest trace in it [default: the current folder].
    #[arg(value_name = "PID|FILE")]
    target: Option<PathBuf>,
    /// Show this device only.
    #[arg(long, value_name = "N")]
    device: Option<i32>,
    /// Print JSON for scripts.
    #[arg(long)]
    json: bool,
}

/// Prints what holds the memory.
///
/// # Errors
///
/// If the process cannot be reached, the trace cannot be read or has no search, or the output cannot be written.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let pid = options.target.as_ref().and_then(|target| target.to_str()?.parse().ok());
    let model = match pid.filter(|_| options.target.as_ref().is_some_and(|target| !target.exists())) {
        Some(pid) => searched(pid)?,
        None => recorded(options.target.as_deref())?,
    };
    let files = FileNames::of(&model);
    let devices = model.devices();
    let wanted = devices.iter().filter(|device| options.device.is_none_or(|wanted| wanted == device.index));
    let found: Vec<(i32, HeldView)> =
        wanted.filter_map(|device| Some((device.index, model.holders_at(device.index, None)?))).collect();
    if found.is_empty() {
        return Err(bad_input(no_search(&model)));
    }
    if options.json {
        let rows: Vec<_> = found.iter().map(|(device, held)| holders::DeviceRow::of(*device, held, &files)).collect();
        return Ok(write_pretty(&mut output::stdout(), &rows)?);
    }
    let style = Style::of_output();
    let mut out = output::styled_stdout(style);
    for (device, held) in &found {
        for line in holders::lines(*device, held, None, &files, style.columns) {
            writeln!(out, "{line}")?;
        }
    }
    Ok(())
}

/// The state of a running process after a search that begins now.
fn searched(pid: u32) -> anyhow::Result<Model> {
    let (time, status) = request_search(pid, None)?;
    let mut model = Model::new();
    let mut follower = Follower::open(Path::new(&status.trace))?;
    let deadline = Instant::now() + SEARCH_TIMEOUT;
    loop {
        let polled = follower.poll(&mut model)?;
        match model.search_since(time) {
            Some(Ok(_)) => return Ok(model),
            Some(Err(why)) => return Err(bad_input(search_failed(why))),
            None => {}
        }
        if Instant::now() >= deadline {
            return Err(bad_input(gave_up(&status.who())));
        }
        if !polled.more {
            std::thread::sleep(POLL);
        }
    }
}

fn recorded(target: Option<&Path>) -> anyhow::Result<Model> {
    let files: Vec<PathBuf> = target.iter().map(|file| file.to_path_buf()).collect();
    let [file] = &*trace_files::traces(&files, false)? else {
        return Err(bad_input("name one trace"));
    };
    trace_files::check_exists(file, "holders")?;
    Ok(progress::report(|progress| load_whole(file, progress))?.model)
}
