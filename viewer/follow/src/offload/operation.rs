//! Watches an operation of a process on a terminal, and describes its outcome.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::offload::control::{Process, Status, Unreachable};
use memlab_base::clock::patience;
use memlab_base::output::ProgressLine;
use memlab_protocol::status::{MoveState, MoveStatus, Operation, OperationKind, OperationPhase};
use memlab_units::format::{self, size};

/// Interval between queries of an operation's progress.
const QUERY_INTERVAL: Duration = Duration::from_millis(50);
/// Longest wait for a process that does not answer.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(30);
/// Columns of a progress bar.
const BAR_COLUMNS: usize = 20;

/// A flag that a signal sets to end this command.
#[derive(Clone, Debug, Default)]
pub struct Interruption(Arc<AtomicBool>);

impl Interruption {
    /// Sets the flag on Ctrl-C from now on, instead of ending.
    pub fn by_key() -> Self {
        Self::by(&[SIGINT])
    }

    /// Sets the flag on the other terminating signals too, for work that must be completed.
    pub fn by_any_signal() -> Self {
        Self::by(&[SIGINT, SIGTERM, SIGHUP])
    }

    fn by(signals: &[i32]) -> Self {
        let interruption = Self::default();
        for signal in signals {
            // If the registration fails, the signal keeps its default action.
            let _ = signal_hook::flag::register(*signal, interruption.0.clone());
        }
        interruption
    }

    /// Returns true if the signal came.
    pub fn has_come(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Sleeps until the time is over or the signal comes.
    pub fn sleep(&self, time: Duration) {
        let end = Instant::now() + time;
        while !self.has_come() {
            match end.saturating_duration_since(Instant::now()) {
                Duration::ZERO => return,
                rest => std::thread::sleep(rest.min(QUERY_INTERVAL)),
            }
        }
    }
}

/// End of a watch.
#[derive(Debug)]
pub enum WatchEnd {
    /// The operation has ended.
    Over(Box<(Operation, MoveStatus)>),
    /// The user pressed Ctrl-C; the operation continues.
    Detached,
}

/// Polls the operation until it ends, and shows its progress if standard error is a terminal.
///
/// # Errors
///
/// If the process ends, stops answering, or has begun another operation since.
pub fn watch(process: &Process, id: u64, who: &str, interruption: &Interruption) -> anyhow::Result<WatchEnd> {
    let mut line = ProgressLine::default();
    let mut heard = Instant::now();
    loop {
        match process.status() {
            Ok(status) => {
                heard = Instant::now();
                if let Some((operation, moving)) = take(status, id, who)? {
                    if operation.phase.is_over() {
                        return Ok(WatchEnd::Over(Box::new((operation, moving))));
                    }
                    line.show(&progress(&operation, moving.arena_bytes, BAR_COLUMNS, true));
                }
            }
            Err(Unreachable::Silent) if heard.elapsed() < patience(SILENCE_TIMEOUT) => {
                line.show(&format!("{who} does not answer…"))
            }
            Err(Unreachable::Silent) => anyhow::bail!(
                "{who} no longer answers: it may be stopped; the operation continues when the process does: see `memlab ps`"
            ),
            Err(error) if error.is_absent() => anyhow::bail!("{who} ended before the operation did"),
            Err(error) => return Err(error.into_error(process.pid, "")),
        }
        if interruption.has_come() {
            return Ok(WatchEnd::Detached);
        }
        interruption.sleep(QUERY_INTERVAL);
    }
}

/// Extracts the operation `id` from a status.
fn take(status: Status, id: u64, who: &str) -> anyhow::Result<Option<(Operation, MoveStatus)>> {
    let moving = status.moving.unwrap_or_default();
    match &moving.operation {
        Some(operation) if operation.id == id => Ok(Some((operation.clone(), moving))),
        _ => anyhow::bail!("{who} has since begun another operation: `memlab ps` shows where its memory is"),
    }
}

/// Formats the progress as a line: `offloading ███████▍      43 %  1.72 of 4.00 GiB  19.8 GB/s  copying`.
///
/// `arena_bytes`: pinned host memory. Before the first copies, the line shows the progress of pinning.
pub fn progress(operation: &Operation, arena_bytes: u64, columns: usize, unicode: bool) -> String {
    let is_pinning = matches!(operation.phase, OperationPhase::Preparing | OperationPhase::Copying)
        && operation.kind != OperationKind::Restore
        && operation.done_bytes == 0
        && arena_bytes < operation.total_bytes;
    let pinning = Operation { done_bytes: arena_bytes, copy_seconds: 0.0, ..operation.clone() };
    let operation = if is_pinning { &pinning } else { operation };
    let share = operation.share();
    let mut line = operation.kind.doing().to_owned();
    if operation.total_bytes > 0 {
        let full = (share * columns as f64).round() as usize;
        let (dark, light) = if unicode { ("█", "░") } else { ("#", ".") };
        line += &format!(
            " {}{} {:>3.0} %  {}",
            dark.repeat(full.min(columns)),
            light.repeat(columns.saturating_sub(full)),
            (share * 100.0).floor(),
            part_of(operation.done_bytes, operation.total_bytes)
        );
        if let Some(rate) = operation.rate() {
            line += &format!("  {rate}");
        }
    }
    line + "  " + if is_pinning { "pinning host memory" } else { operation.phase.as_str() }
}

/// Formats `1.72 of 4.00 GiB`.
fn part_of(part: u64, whole: u64) -> String {
    let (part, whole) = (size(part), size(whole));
    match (part.split_once(' '), whole.split_once(' ')) {
        (Some((number, unit)), Some((_, same))) if unit == same => format!("{number} of {whole}"),
        _ => format!("{part} of {whole}"),
    }
}

/// Describes an outcome: `offloaded 4.00 GiB in 0.21 s (19.8 GB/s)`.
pub fn outcome_in_short(operation: &Operation) -> String {
    let words = format!("{} {} in {}", operation.kind.done(), size(operation.done_bytes), seconds(operation.seconds));
    words + &operation.rate().map(|rate| format!(" ({rate})")).unwrap_or_default()
}

/// Describes an outcome, `offloaded 4.00 GiB in 0.21 s (19.8 GB/s)`, and the memory that stays on the device.
pub fn outcome(operation: &Operation, moving: &MoveStatus) -> String {
    let mut words = outcome_in_short(operation);
    if operation.kind == OperationKind::Offload && moving.fixed_bytes > 0 {
        let fixed = size(moving.fixed_bytes);
        words += &format!("; {fixed} that cannot be moved stay on the device, and so does the CUDA context");
    }
    words
}

/// Formats a duration: `0.21 s`, `12.3 s`, `2m 05s`.
pub fn seconds(seconds: f64) -> String {
    match seconds {
        seconds if seconds.is_finite() && seconds >= 10.0 => format::duration((seconds * 1e9) as u64),
        seconds if seconds > 0.0 => format!("{seconds:.2} s"),
        _ => "no time".to_owned(),
    }
}

/// Describes the location of a process's memory: `offloaded 4.00 GiB`, `offloading 43 %`; `None`: on the devices.
pub fn where_it_is(moving: &MoveStatus) -> Option<String> {
    let host = size(moving.host_bytes);
    let running = moving.operation.as_ref().filter(|operation| !operation.phase.is_over() && operation.total_bytes > 0);
    match moving.state {
        MoveState::Resident | MoveState::Unknown => None,
        MoveState::Checkpointed => Some("checkpointed".to_owned()),
        MoveState::Offloaded => Some(format!("offloaded {host}")),
        MoveState::PartlyOffloaded => Some(format!("partly offloaded {host}")),
        state => Some(match running {
            Some(operation) => format!("{} {:.0} %", state.short(), (operation.share() * 100.0).floor()),
            None => state.short().to_owned(),
        }),
    }
}

/// Returns the error of a failed operation.
pub fn failure(operation: &Operation, who: &str) -> Option<String> {
    let reason = operation.error.as_deref().unwrap_or("no reason was given");
    (operation.phase == OperationPhase::Failed).then(|| format!("{who}: {} failed: {reason}", operation.kind.doing()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copying() -> Operation {
        Operation {
            id: 3,
            phase: OperationPhase::Copying,
            done_bytes: 1 << 30,
            total_bytes: 4 << 30,
            seconds: 0.06,
            copy_seconds: 0.05,
            ..Operation::default()
        }
    }

    #[test]
    fn progress_is_a_line() {
        assert_eq!(
            progress(&copying(), 4 << 30, 8, true),
            "offloading ██░░░░░░  25 %  1.00 of 4.00 GiB  21.5 GB/s  copying"
        );
        let waiting = Operation { kind: OperationKind::Restore, ..Operation::default() };
        assert_eq!(progress(&waiting, 0, 8, true), "restoring  waiting for the program's next launch");
        // AND until the first copy, an offload shows how much host memory is pinned
        let pinning = Operation { done_bytes: 0, ..copying() };
        let said = "offloading ████░░░░  50 %  2.00 of 4.00 GiB  pinning host memory";
        assert_eq!(progress(&pinning, 2 << 30, 8, true), said);
        assert!(progress(&pinning, 4 << 30, 8, true).ends_with("0 B of 4.00 GiB  copying"));
        // AND invalid figures do no harm
        let evil = Operation { done_bytes: u64::MAX, total_bytes: 1, seconds: f64::MAX, ..copying() };
        assert!(progress(&evil, 0, 8, false).starts_with("offloading ######## 100 %"));
        assert!(outcome(&evil, &MoveStatus::default()).starts_with("offloaded 16.0 EiB in "));
        assert_eq!(seconds(-1.0), "no time");
    }

    #[test]
    fn the_outcome_contains_the_memory_that_stays() {
        let operation = Operation {
            phase: OperationPhase::Done,
            done_bytes: 4 << 30,
            seconds: 0.213,
            copy_seconds: 0.217,
            ..copying()
        };
        let moving = MoveStatus { fixed_bytes: 18 << 20, ..MoveStatus::default() };
        assert_eq!(
            outcome(&operation, &moving),
            "offloaded 4.00 GiB in 0.21 s (19.8 GB/s); 18.0 MiB that cannot be moved stay on the device, and so does the CUDA context"
        );
        assert_eq!(
            outcome(&Operation { kind: OperationKind::Restore, ..operation }, &moving),
            "restored 4.00 GiB in 0.21 s (19.8 GB/s)"
        );
    }
}
