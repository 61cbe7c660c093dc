//! `memlab ps`: the recorded processes of this user.

use std::io::Write;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use clap::Args;
use memlab_trace::load;
use serde::Serialize;

use memlab_base::clock::patience;
use memlab_base::json::write_pretty;
use memlab_base::table::aligned;
use memlab_base::{output, progress, text};
use memlab_follow::cards::{CardStatus, cards};
use memlab_follow::offload::control::{self, DeviceStatus, Status, Unreachable};
use memlab_follow::offload::operation;
use memlab_protocol::status::{LimitStatus, MoveStatus};
use memlab_units::format::size;

/// Longest time to read a trace for its totals.
const TOTALS_TIMEOUT: Duration = Duration::from_secs(3);

/// A row of the list.
#[derive(Debug, Serialize)]
struct ProcessRow {
    pid: u32,
    rank: Option<u32>,
    command: Vec<String>,
    state: String,
    trace: String,
    devices: Vec<DeviceRow>,
    /// `null` if the process's memlab is too old to report it.
    #[serde(rename = "move")]
    moving: Option<MoveStatus>,
    limits: Vec<LimitStatus>,
    /// Reason why nothing more is known, and advice.
    problem: Option<String>,
}

#[derive(Debug, Serialize)]
struct DeviceRow {
    index: i32,
    allocated_bytes: u64,
    reserved_bytes: u64,
}

/// Options of `memlab ps`.
#[derive(Clone, Copy, Debug, Args)]
pub struct Options {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Prints the recorded processes.
///
/// # Errors
///
/// If standard output cannot be written.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let rows: Vec<ProcessRow> = control::discover().into_iter().map(|(pid, answer)| row(pid, answer)).collect();
    let mut output = output::stdout();
    if options.json {
        write_pretty(&mut output, &serde_json::json!({ "processes": rows, "cards": *cards() }))?;
    } else if rows.is_empty() {
        writeln!(output, "no recorded process is running: start one with `memlab run -- CMD`")?;
    } else {
        output.write_all(table(&rows).as_bytes())?;
        for problem in rows.iter().filter_map(|row| row.problem.as_deref()) {
            writeln!(output, "{}", text::clean(problem))?;
        }
        output.write_all(card_table(&cards()).as_bytes())?;
    }
    Ok(())
}

/// Maximum number of processes named for a card.
const MAX_CARD_PROCESSES: usize = 4;

/// The cards of the machine, as `nvidia-smi` counts them, after an empty line; empty without cards.
fn card_table(cards: &[CardStatus]) -> String {
    if cards.is_empty() {
        return String::new();
    }
    let or_dash = |words: Option<String>| words.unwrap_or_else(|| "-".to_owned());
    let mut cells = vec![["GPU", "NAME", "BUSY", "TEMP", "POWER", "IN USE", "PROCESSES"].map(str::to_owned).to_vec()];
    for card in cards {
        let in_use = card.used_bytes.zip(card.total_bytes);
        let mut processes: Vec<_> = card.processes.iter().map(|process| (process.bytes, process.pid)).collect();
        processes.sort_unstable_by(|a, b| b.cmp(a));
        let more = processes.len().saturating_sub(MAX_CARD_PROCESSES);
        let named = processes.iter().take(MAX_CARD_PROCESSES).map(|(bytes, pid)| match bytes {
            Some(bytes) => format!("{pid} ({})", size(*bytes)),
            None => pid.to_string(),
        });
        let named: Vec<String> = named.chain((more > 0).then(|| format!("{more} more"))).collect();
        cells.push(vec![
            card.index.to_string(),
            text::clean(&card.name).into_owned(),
            or_dash(card.busy_percent.map(|percent| format!("{percent} %"))),
            or_dash(card.celsius.map(|celsius| format!("{celsius} °C"))),
            or_dash(card.power()),
            or_dash(in_use.map(|(used, total)| format!("{} of {}", size(used), size(total)))),
            if named.is_empty() { "-".to_owned() } else { named.join(", ") },
        ]);
    }
    // Numbers are right-aligned.
    let lines = aligned(&cells, &[], |column| !matches!(column, 0 | 2..=5));
    lines.iter().fold("\n".to_owned(), |table, line| table + line + "\n")
}

fn row(pid: u32, answer: Result<Status, Unreachable>) -> ProcessRow {
    match answer {
        Ok(status) => {
            let moved = status.moving.as_ref().and_then(operation::where_it_is);
            let devices = if status.devices.is_empty() { totals(&status) } else { status.devices };
            ProcessRow {
                pid,
                rank: status.rank,
                command: status.command,
                state: moved.unwrap_or_else(|| {
                    if status.state.is_empty() { "recording".to_owned() } else { status.state.clone() }
                }),
                moving: status.moving,
                limits: status.limits,
                problem: None,
                trace: status.trace.to_string_lossy().into_owned(),
                devices: devices
                    .into_iter()
                    .map(|device| DeviceRow {
                        index: device.index,
                        allocated_bytes: device.allocated_bytes,
                        reserved_bytes: device.reserved_bytes,
                    })
                    .collect(),
            }
        }
        Err(error) => ProcessRow {
            pid,
            rank: None,
            command: control::command_of(pid),
            state: match error {
                Unreachable::Silent => "does not answer",
                Unreachable::NotOurs(_) => "not yours",
                Unreachable::Refused(_) => "refuses",
                _ => "cannot be asked",
            }
            .to_owned(),
            trace: String::new(),
            devices: Vec::new(),
            moving: None,
            limits: Vec::new(),
            problem: Some(problem(pid, &error)),
        },
    }
}

/// Describes why a process is unusable, and how to remove its row.
fn problem(pid: u32, error: &Unreachable) -> String {
    let advice = match control::run_state(pid) {
        Some('T' | 't') => {
            format!("it is stopped: `kill -CONT {pid}` continues it, `kill -CONT {pid}; kill {pid}` ends it")
        }
        Some('D') => "it waits for the system, perhaps for a disk or a driver: look again later".to_owned(),
        _ => format!("it is busy, or hangs: look again later, or end it with `kill {pid}`"),
    };
    match error {
        Unreachable::Silent => format!("process {pid} does not answer: {advice}"),
        Unreachable::NotOurs(_) => format!("{}: remove it", error.explain(pid, "")),
        error => error.explain(pid, ""),
    }
}

/// Reads totals from the trace of a process that does not report them.
///
/// Returns nothing if that takes too long.
fn totals(status: &Status) -> Vec<DeviceStatus> {
    let started = Instant::now();
    let in_time = || {
        if started.elapsed() < patience(TOTALS_TIMEOUT) { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    let loaded = progress::report(|progress| {
        load(&status.trace, &mut |read| {
            let _ = progress(read);
            in_time()
        })
    });
    match loaded {
        Ok(loaded) if !loaded.cancelled => loaded
            .model
            .devices()
            .into_iter()
            .map(|device| DeviceStatus {
                index: device.index,
                allocated_bytes: device.allocated_bytes,
                reserved_bytes: device.reserved_bytes,
            })
            .collect(),
        _ => Vec::new(),
    }
}

const HEADS: [&str; 10] =
    ["PID", "RANK", "DEVICE", "ALLOCATED", "RESERVED", "LIMIT", "SPILLED", "STATE", "COMMAND", "TRACE"];
const LIMIT: usize = 5;
const SPILLED: usize = 6;

fn table(rows: &[ProcessRow]) -> String {
    // Most processes have no limit, and the table is already wide.
    let limits = rows.iter().flat_map(|row| &row.limits).filter(|limit| limit.limit_bytes.is_some());
    let (has_limits, has_spilled) =
        limits.fold((false, false), |(_, spilled), limit| (true, spilled || limit.spilled_bytes > 0));
    let left_out: Vec<usize> = [(LIMIT, has_limits), (SPILLED, has_spilled)]
        .into_iter()
        .filter(|(_, has)| !has)
        .map(|(column, _)| column)
        .collect();
    let mut cells = vec![HEADS.map(str::to_owned).to_vec()];
    for row in rows {
        let of_device = |device: &DeviceRow| {
            let limit = row.limits.iter().find(|limit| limit.device == device.index);
            let [most, spilled] = match limit.map(|limit| (limit.limit_bytes, limit)) {
                Some((Some(most), limit)) => [size(most), size(limit.spilled_bytes)],
                _ => ["-", "-"].map(str::to_owned),
            };
            [format!("cuda:{}", device.index), size(device.allocated_bytes), size(device.reserved_bytes), most, spilled]
        };
        let mut devices: Vec<[String; 5]> = row.devices.iter().map(of_device).collect();
        if devices.is_empty() {
            devices.push(["-"; 5].map(str::to_owned));
        }
        for (index, [device, allocated, reserved, limit, spilled]) in devices.into_iter().enumerate() {
            let once = |words: String| if index == 0 { words } else { String::new() };
            let command = text::short_command(&row.command);
            cells.push(vec![
                once(row.pid.to_string()),
                once(row.rank.map_or_else(|| "-".to_owned(), |rank| rank.to_string())),
                device,
                allocated,
                reserved,
                limit,
                spilled,
                once(text::clean(&row.state).into_owned()),
                once(text::fit(&command, 40, "…").into_owned()),
                once(text::clean(&row.trace).into_owned()),
            ]);
        }
    }
    // Numbers are right-aligned.
    let lines = aligned(&cells, &left_out, |column| !matches!(column, 0 | 1 | 3..=SPILLED));
    lines.iter().map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_stand_in_a_table() {
        // GIVEN a process on two devices, and one that does not answer
        let status = Status {
            pid: 42,
            rank: Some(0),
            command: ["python", "train.py", "\u{1b}[2J"].map(str::to_owned).to_vec(),
            trace: "/tmp/t.jsonl".into(),
            devices: (0..2)
                .map(|index| DeviceStatus { index, allocated_bytes: 1 << 30, reserved_bytes: 2 << 30 })
                .collect(),
            ..Status::default()
        };
        let rows = [row(42, Ok(status)), row(4_343_434, Err(Unreachable::Silent))];
        // WHEN shown THEN each device has a line, no columns show limits, and control characters do not reach the terminal
        insta::assert_snapshot!(table(&rows), @r"
            PID  RANK  DEVICE  ALLOCATED  RESERVED  STATE            COMMAND        TRACE
             42     0  cuda:0   1.00 GiB  2.00 GiB  recording        train.py �[2J  /tmp/t.jsonl
                       cuda:1   1.00 GiB  2.00 GiB
        4343434     -  -               -         -  does not answer  ?
        ");
    }

    #[test]
    fn limits_have_columns_if_any_are_set() {
        // GIVEN a process with a limit on one of its two devices, and one without a limit
        let gib = 1 << 30;
        let status = |pid, limits| Status {
            pid,
            command: ["python", "train.py"].map(str::to_owned).to_vec(),
            trace: "/tmp/t.jsonl".into(),
            devices: (0..2).map(|index| DeviceStatus { index, allocated_bytes: gib, reserved_bytes: gib }).collect(),
            limits,
            ..Status::default()
        };
        let limit = |device, limit_bytes, spilled_bytes| LimitStatus {
            device,
            limit_bytes,
            spilled_bytes,
            ..LimitStatus::default()
        };
        let limited = |spilled| vec![limit(0, None, 0), limit(1, Some(gib / 2), spilled)];
        let shown = |spilled| table(&[row(42, Ok(status(42, limited(spilled)))), row(43, Ok(status(43, Vec::new())))]);
        // THEN limits have a column
        insta::assert_snapshot!(shown(0), @r"
        PID  RANK  DEVICE  ALLOCATED  RESERVED    LIMIT  STATE      COMMAND   TRACE
         42     -  cuda:0   1.00 GiB  1.00 GiB        -  recording  train.py  /tmp/t.jsonl
                   cuda:1   1.00 GiB  1.00 GiB  512 MiB
         43     -  cuda:0   1.00 GiB  1.00 GiB        -  recording  train.py  /tmp/t.jsonl
                   cuda:1   1.00 GiB  1.00 GiB        -
        ");
        // AND memory spilled to the host has another column if any was spilled
        insta::assert_snapshot!(shown(gib / 4), @r"
        PID  RANK  DEVICE  ALLOCATED  RESERVED    LIMIT  SPILLED  STATE      COMMAND   TRACE
         42     -  cuda:0   1.00 GiB  1.00 GiB        -        -  recording  train.py  /tmp/t.jsonl
                   cuda:1   1.00 GiB  1.00 GiB  512 MiB  256 MiB
         43     -  cuda:0   1.00 GiB  1.00 GiB        -        -  recording  train.py  /tmp/t.jsonl
                   cuda:1   1.00 GiB  1.00 GiB        -        -
        ");
    }
}
