//! `memlab restore`: moves a program's GPU memory back to the devices.

use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::offload::{FailedOperation, finish, print_note, target, too_old, why_not};
use memlab_base::arguments::{parse_timeout, pid};
use memlab_base::error::{bad_input, interrupted};
use memlab_base::json::write_pretty;
use memlab_base::output;
use memlab_follow::offload::checkpoint::{self, Failure, Target};
use memlab_follow::offload::control::{Process, Status};
use memlab_follow::offload::cuda_driver::DriverState;
use memlab_follow::offload::operation::{self, Interruption};
use memlab_protocol::status::MoveState;

/// Interval between attempts while the device is full.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// Options of `memlab restore`.
#[derive(Clone, Copy, Debug, Args)]
pub struct Options {
    /// The process id.
    #[arg(value_parser = pid)]
    pid: u32,
    /// Longest wait for the program to reach a point where it can stop.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_timeout)]
    timeout: Duration,
    /// Retry until the device has room.
    #[arg(long)]
    wait: bool,
    /// Free the pinned host memory; the next offload then takes longer.
    #[arg(long)]
    free_host: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Restores the memory of a process.
///
/// # Errors
///
/// If the process cannot be reached, refuses or fails, or if the user pressed Ctrl-C.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let (process, status) = match Process::find(options.pid) {
        Ok(found) => found,
        Err(error) => {
            // The driver can checkpoint any CUDA program.
            let target = target(options.pid, None)?;
            return match checkpoint::state(&target) {
                Some(DriverState::Checkpointed | DriverState::Locked | DriverState::Failed) => {
                    by_driver(options, &target, &Interruption::by_any_signal())
                }
                _ => Err(error.into_error(options.pid, "wait until it continues")),
            };
        }
    };
    let who = status.who();
    let state = status.moving.as_ref().map(|moving| (moving.enabled, moving.state));
    let target = Target { pid: options.pid, who: who.clone(), process: Some(process.clone()) };
    match state {
        Some((_, MoveState::Checkpointed)) => {
            by_driver(options, &target, &Interruption::by_any_signal())?;
            // memlab may have offloaded the process before the driver's checkpoint moved the rest.
            let moving = process.status().ok().and_then(|status| status.moving).unwrap_or_default();
            if !matches!(moving.state, MoveState::Offloaded | MoveState::PartlyOffloaded) {
                return Ok(());
            }
        }
        Some((true, _)) => {}
        _ if matches!(checkpoint::state(&target), Some(DriverState::Checkpointed | DriverState::Locked)) => {
            return by_driver(options, &target, &Interruption::by_any_signal());
        }
        None => return Err(too_old(&who)),
        Some((false, _)) => {
            return Err(bad_input(format!("{who} has nothing to restore: {}", why_not(&moving_of(&status)))));
        }
    }
    by_process(options, &process, &who)
}

fn moving_of(status: &Status) -> memlab_protocol::status::MoveStatus {
    status.moving.clone().unwrap_or_default()
}

fn by_process(options: &Options, process: &Process, who: &str) -> anyhow::Result<()> {
    let interruption = Interruption::by_key();
    let mut retry = RetryWhenFull::new(options.wait);
    loop {
        let id = process
            .restore(options.timeout, options.free_host)
            .map_err(|error| error.into_error(options.pid, "wait until it continues"))?;
        match finish(process, id, who, &interruption, options.json && !options.wait) {
            Ok((operation, moving)) => {
                if options.json && options.wait {
                    write_pretty(
                        &mut output::stdout(),
                        &json!({ "pid": options.pid, "operation": operation, "move": moving }),
                    )?;
                }
                if !options.json {
                    output::line(operation::outcome(&operation, &moving))?;
                    print_note(&operation)?;
                }
                return Ok(());
            }
            Err(error) => {
                let failed = error.downcast_ref::<FailedOperation>().map(|failed| &failed.operation);
                let is_full = failed.is_some_and(|operation| operation.retryable);
                if let Some(operation) = failed.filter(|_| options.json && options.wait && !is_full) {
                    write_pretty(&mut output::stdout(), &json!({ "pid": options.pid, "operation": operation }))?;
                }
                retry.after(error, is_full, &interruption)?;
            }
        }
    }
}

fn by_driver(options: &Options, target: &Target, interruption: &Interruption) -> anyhow::Result<()> {
    let mut retry = RetryWhenFull::new(options.wait);
    loop {
        let mut line = output::ProgressLine::default();
        line.show(&format!("{}: the CUDA driver is restoring its memory…", target.who));
        let result = checkpoint::restore(target);
        drop(line);
        match result {
            Ok(took) => {
                let took = took.as_secs_f64();
                if options.json {
                    write_pretty(
                        &mut output::stdout(),
                        &json!({ "pid": options.pid, "state": "running", "seconds": took }),
                    )?;
                } else {
                    output::line(format_args!("restored {} in {}", target.who, operation::seconds(took)))?;
                }
                return Ok(());
            }
            Err(failure @ Failure { is_full, .. }) => retry.after(failure.into(), is_full, interruption)?,
        }
    }
}

/// Retries while the device is full, and reports the wait once.
struct RetryWhenFull {
    wait: bool,
    said: bool,
}

impl RetryWhenFull {
    fn new(wait: bool) -> Self {
        Self { wait, said: false }
    }

    /// Waits after a failure for lack of device memory; returns every other error.
    fn after(&mut self, error: anyhow::Error, is_full: bool, interruption: &Interruption) -> anyhow::Result<()> {
        if !self.wait || !is_full {
            return Err(error);
        }
        if !self.said {
            output::note(error);
            output::note("retrying until the device has room; Ctrl-C stops");
            self.said = true;
        }
        interruption.sleep(RETRY_INTERVAL);
        if interruption.has_come() {
            return Err(interrupted("stopped waiting for room on the device: the memory stays in host memory"));
        }
        Ok(())
    }
}
