//! `memlab offload`: moves all or part of a running program's GPU memory to host memory.

use std::time::Duration;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use memlab_trace::Category;
use serde_json::json;

use memlab_base::arguments::{parse_timeout, pid};
use memlab_base::category::{category_list, parse_category};
use memlab_base::clock::now_unix_ns;
use memlab_base::error::{bad_input, interrupted};
use memlab_base::json::write_pretty;
use memlab_base::output;
use memlab_follow::offload::checkpoint::{self, Target};
use memlab_follow::offload::control::{Process, Status};
use memlab_follow::offload::operation::{self, Interruption, WatchEnd};
use memlab_follow::offload::selection::Criteria;
use memlab_follow::offload::selection::pages::Pages;
use memlab_protocol::request::MAX_REQUEST_BYTES;
use memlab_protocol::status::{MoveStatus, Operation};
use memlab_units::format::{self, size};

/// Help text after the options.
pub const HELP: &str = "\
Start the program with `memlab run --offload`. For any other CUDA program, memlab uses the CUDA driver's checkpoint (driver \
570 or newer), as with --full. Ctrl-C leaves the operation to complete in the program.

With --category, --layer or --idle, memlab moves the memory that meets all of them, and the program continues: kernels then \
reach that memory over the bus, which is slow. Memory moves in whole pages of 2 MiB. A page moves if at least half of its live \
bytes are selected.

memlab does not see which memory kernels touch, so it infers what is idle: memory allocated before that time, of layers (or of \
lines, outside layers) that have allocated nothing since. Optimizer state and gradients are not idle if a step has ended since.

Examples:
  memlab offload 4242                                  all memory; the program waits
  memlab offload 4242 --category optimizer_state       the optimizer's memory, between its steps
  memlab offload 4242 --layer encoder --layer embed    two parts of a model
  memlab offload 4242 --idle 1m                        memory that seems unused";

/// Options of `memlab offload`.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// The process id.
    #[arg(value_parser = pid)]
    pid: u32,
    /// Longest wait for the program to reach a point where it can stop.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_timeout)]
    timeout: Duration,
    /// Move all memory and the CUDA context with the CUDA driver's checkpoint; works with any CUDA program.
    #[arg(long, conflicts_with_all = ["category", "layer", "idle"])]
    full: bool,
    #[arg(long, value_name = "NAME", value_parser = parse_category, help = category_help())]
    category: Vec<Category>,
    /// Move only memory of this layer and the layers inside it; repeat the option for more layers.
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    layer: Vec<String>,
    /// Move only memory that has been idle for this long, as far as memlab can infer.
    #[arg(long, value_name = "TIME", value_parser = parse_timeout)]
    idle: Option<Duration>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

fn category_help() -> String {
    format!("Move only memory of this category; repeat the option for more categories [{}]", category_list())
}

impl Options {
    fn criteria(&self) -> Criteria {
        Criteria {
            categories: self.category.clone(),
            layers: self.layer.clone(),
            idle_ns: self.idle.map(|idle| idle.as_nanos() as u64),
        }
    }
}

/// Offloads the memory of a process.
///
/// # Errors
///
/// If the process cannot be reached, refuses or fails, or if the user pressed Ctrl-C.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let found = Process::find(options.pid);
    if options.full {
        return full(options, found.ok());
    }
    let (process, status) = found.map_err(|error| {
        let hint = if error.is_absent() { "; --full offloads any CUDA program" } else { "" };
        bad_input(error.explain(options.pid, "wait until it continues") + hint)
    })?;
    let who = status.who();
    let moving = status.moving.as_ref().ok_or_else(|| too_old(&who))?;
    let criteria = options.criteria();
    if !criteria.is_empty() {
        return parts(options, &criteria, &process, &status, moving);
    }
    if !moving.enabled {
        let why_not = why_not(moving);
        output::note(format_args!("{who}: {why_not}: using the CUDA driver's checkpoint, as with --full"));
        return full(options, Some((process, status)));
    }
    let interruption = Interruption::by_key();
    let started = process.offload(options.timeout, None);
    let id = started.map_err(|error| error.into_error(options.pid, "wait until it continues"))?;
    let (operation, moving) = finish(&process, id, &who, &interruption, options.json)?;
    if !options.json {
        output::line(operation::outcome(&operation, &moving))?;
        print_note(&operation)?;
    }
    Ok(())
}

/// The most ranges in a request.
///
/// Each range takes at most 44 characters of JSON.
const MAX_RANGES: usize = 20_000;
const _: () = assert!(MAX_RANGES * 44 + 200 < MAX_REQUEST_BYTES);

/// Moves the memory that meets the criteria; the program continues.
fn parts(
    options: &Options,
    criteria: &Criteria,
    process: &Process,
    status: &Status,
    moving: &MoveStatus,
) -> anyhow::Result<()> {
    let (who, what) = (status.who(), criteria.describe());
    if !moving.enabled {
        return Err(bad_input(format!(
            "{who}: {}: the CUDA driver's checkpoint moves all or nothing, so ask for all of it, or start the program with \
             `memlab run --offload`",
            why_not(moving)
        )));
    }
    let pages = criteria.pages(&status.trace, moving.page_bytes, now_unix_ns())?;
    if pages.ranges.is_empty() {
        let found = match pages.wanted_bytes {
            0 => format!("no memory of PyTorch's allocator matches {what}"),
            bytes => format!("{} of {what} are in pages that are mostly other memory", size(bytes)),
        };
        anyhow::bail!("{who}: {found}: nothing was moved; `memlab top {}` shows its memory", options.pid);
    }
    let interruption = Interruption::by_key();
    let mut operations: Vec<Operation> = Vec::new();
    let mut moving = moving.clone();
    let mut failed = None;
    for (index, ranges) in pages.ranges.chunks(MAX_RANGES).enumerate() {
        let started = process.offload(options.timeout, Some(ranges));
        let id = started.map_err(|error| error.into_error(options.pid, "wait until it continues"))?;
        match finish(process, id, &who, &interruption, false) {
            Ok((operation, after)) => {
                operations.push(operation);
                moving = after;
            }
            Err(error) => {
                let asked = index * MAX_RANGES + ranges.len();
                if asked < pages.ranges.len() {
                    let all = pages.ranges.len();
                    output::note(format_args!("{asked} of {all} ranges were requested before this"));
                }
                operations.extend(error.downcast_ref::<FailedOperation>().map(|failed| failed.operation.clone()));
                failed = Some(error);
                break;
            }
        }
    }
    if options.json && !operations.is_empty() {
        let selection = json!({
            "ranges": pages.ranges.len(), "bytes": pages.bytes, "wanted_bytes": pages.wanted_bytes,
            "moved_bytes": pages.moved_bytes, "other_bytes": pages.other_bytes(), "left_bytes": pages.left_bytes(),
        });
        let told = json!({ "pid": process.pid, "operations": operations, "move": moving, "selection": selection });
        write_pretty(&mut output::stdout(), &told)?;
    }
    if let Some(error) = failed {
        return Err(error);
    }
    if !options.json {
        let moved = operations.iter().fold(0, |sum: u64, operation| sum.saturating_add(operation.done_bytes));
        output::line(parts_outcome(&pages, moved, &what, moving.page_bytes))?;
        for operation in &operations {
            print_note(operation)?;
        }
    }
    Ok(())
}

/// Describes a partial move: `moved 1.20 GiB (1.15 GiB of optimizer_state; 51.2 MiB of other memory share its pages of 2
/// MiB); 30.0 MiB of it stay, in pages that are mostly other memory`.
fn parts_outcome(pages: &Pages, moved: u64, what: &str, page_bytes: u64) -> String {
    let mut words = if moved == pages.bytes {
        format!("moved {} ({} of {what}", size(moved), size(pages.moved_bytes))
    } else {
        // The process knows more about its memory than its trace shows. Its note names what stayed.
        format!("moved {} of {} requested ({} of {what}", size(moved), size(pages.bytes), size(pages.moved_bytes))
    };
    if pages.other_bytes() > 0 {
        let page = format::tick(page_bytes);
        words += &format!("; {} of other memory share its pages of {page}", size(pages.other_bytes()));
    }
    words += ")";
    if pages.left_bytes() > 0 {
        words += &format!("; {} of it stay, in pages that are mostly other memory", size(pages.left_bytes()));
    }
    words
}

/// Returns the error for a process whose memlab cannot move memory.
pub fn too_old(who: &str) -> anyhow::Error {
    bad_input(format!(
        "{who} runs under an older memlab, which cannot move memory: restart it with this one, or offload it with --full, \
         the CUDA driver's checkpoint"
    ))
}

/// Returns the reason why memlab cannot move a process's memory.
pub fn why_not(moving: &MoveStatus) -> &str {
    moving.why_not.as_deref().unwrap_or("it was started without --offload")
}

/// Follows an operation to its end; with `json` prints it.
///
/// # Errors
///
/// If the operation fails, or the user pressed Ctrl-C.
pub fn finish(
    process: &Process,
    id: u64,
    who: &str,
    interruption: &Interruption,
    json: bool,
) -> anyhow::Result<(Operation, MoveStatus)> {
    let (operation, moving) = match operation::watch(process, id, who, interruption)? {
        WatchEnd::Over(over) => *over,
        WatchEnd::Detached => {
            return Err(interrupted(format!("detached: the operation continues in {who}; `memlab ps` shows it")));
        }
    };
    if json {
        write_pretty(&mut output::stdout(), &json!({ "pid": process.pid, "operation": operation, "move": moving }))?;
    }
    match operation::failure(&operation, who) {
        Some(error) => Err(FailedOperation { operation, message: error }.into()),
        None => Ok((operation, moving)),
    }
}

/// Prints the note of an operation, if it has one.
///
/// # Errors
///
/// If standard output cannot be written.
pub fn print_note(operation: &Operation) -> std::io::Result<()> {
    operation.note.as_ref().map_or(Ok(()), |note| output::line(format_args!("  {note}")))
}

/// A failed operation.
#[derive(Clone, Debug)]
pub struct FailedOperation {
    /// The operation as the process reports it.
    pub operation: Operation,
    message: String,
}

impl std::fmt::Display for FailedOperation {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl std::error::Error for FailedOperation {}

/// Returns the process as a target of the driver's checkpoint, whether or not it runs under memlab.
pub fn target(pid: u32, found: Option<(Process, Status)>) -> anyhow::Result<Target> {
    match found {
        Some((process, status)) => Ok(Target { pid, who: status.who(), process: Some(process) }),
        None if memlab_follow::offload::control::owner(pid).is_none() => {
            Err(bad_input(format!("no process {pid}: `memlab ps` lists recorded processes")))
        }
        None => Ok(Target { pid, who: format!("process {pid}"), process: None }),
    }
}

fn full(options: &Options, found: Option<(Process, Status)>) -> anyhow::Result<()> {
    if let Some((_, status)) = &found
        && let Some(moving) = status.moving.as_ref().filter(|moving| moving.state.is_busy())
    {
        let doing = moving.state.short();
        return Err(bad_input(format!("{} is {doing}: wait for it to end, then try again", status.who())));
    }
    let target = target(options.pid, found)?;
    // An interrupt between lock and checkpoint would leave the program locked.
    let interruption = Interruption::by_any_signal();
    let mut line = output::ProgressLine::default();
    line.show(&format!("{}: the CUDA driver is offloading its memory…", target.who));
    let took = checkpoint::offload(&target, options.timeout)?;
    drop(line);
    let took = took.as_secs_f64();
    if options.json {
        write_pretty(&mut output::stdout(), &json!({ "pid": options.pid, "state": "checkpointed", "seconds": took }))?;
    } else {
        output::line(format_args!(
            "checkpointed {} in {}: all its GPU memory is in host memory; `memlab restore {}` restores it",
            target.who,
            operation::seconds(took),
            options.pid
        ))?;
    }
    if interruption.has_come() {
        return Err(interrupted("interrupted, but the driver could not be stopped: the program is checkpointed"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outcome_counts_memory_that_shares_pages() {
        let (mib, page) = (1 << 20, 2 << 20);
        let pages = Pages {
            ranges: vec![(0, 1230 * mib)],
            bytes: 1230 * mib,
            wanted_bytes: 1208 * mib,
            moved_bytes: 1178 * mib,
        };
        assert_eq!(
            parts_outcome(&pages, pages.bytes, "optimizer_state", page),
            "moved 1.20 GiB (1.15 GiB of optimizer_state; 52.0 MiB of other memory share its pages of 2 MiB); 30.0 MiB of it \
             stay, in pages that are mostly other memory"
        );
        let whole = Pages { wanted_bytes: 1230 * mib, moved_bytes: 1230 * mib, ..pages };
        assert_eq!(parts_outcome(&whole, whole.bytes, "layer h.3", page), "moved 1.20 GiB (1.20 GiB of layer h.3)");
        assert_eq!(
            parts_outcome(&whole, 2 * mib, "layer h.3", page),
            "moved 2.00 MiB of 1.20 GiB requested (1.20 GiB of layer h.3)"
        );
    }
}
