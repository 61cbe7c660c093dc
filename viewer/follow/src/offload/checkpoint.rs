//! Moves a process's whole GPU state with the CUDA driver's checkpoint.
//!
//! It moves everything off the device, including the context, of any CUDA process, and restores it. It is all or nothing,
//! and the driver reports no progress.

use std::fmt;
use std::time::{Duration, Instant};

use crate::offload::control::Process;
use crate::offload::cuda_driver::{Driver, DriverError, DriverState};

/// A failed operation.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Message: what happened, to what, and what to do.
    pub message: String,
    /// True if the device is full, so that another attempt may succeed.
    pub is_full: bool,
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

fn failure(message: String) -> Failure {
    Failure { message, is_full: false }
}

/// A process, with its names for the driver and for people.
#[derive(Clone, Debug)]
pub struct Target {
    /// Process id.
    pub pid: u32,
    /// `train.py (pid 42)`.
    pub who: String,
    /// Its control socket, if it runs under memlab.
    pub process: Option<Process>,
}

impl Target {
    fn number(&self) -> Result<i32, Failure> {
        i32::try_from(self.pid).map_err(|_| failure(format!("no process {}", self.pid)))
    }

    fn state(&self, driver: &Driver) -> Result<DriverState, Failure> {
        driver.state(self.number()?).map_err(|error| {
            failure(format!(
                "{}: the CUDA driver does not report its state: {}: check that it is yours, uses CUDA and runs on this \
                 machine",
                self.who, error.text
            ))
        })
    }

    /// Notifies the process, which reports the state in its status.
    fn note(&self, value: bool) {
        if let Some(process) = &self.process {
            // A failure changes nothing: before each operation, the driver is asked for the real state.
            let _ = process.note_checkpointed(value);
        }
    }

    fn failed_for_good(&self) -> Failure {
        failure(format!(
            "{}: a checkpoint of it failed, and the CUDA driver cannot recover it: end the program and restart it",
            self.who
        ))
    }
}

/// Returns the driver's state of a process; `None`: no state, or no driver.
pub fn state(target: &Target) -> Option<DriverState> {
    target.state(&Driver::open().ok()?).ok()
}

/// Moves all device memory of the process to the host.
///
/// # Errors
///
/// If the driver refuses; the process then continues, unless the message states otherwise.
pub fn offload(target: &Target, timeout: Duration) -> Result<Duration, Failure> {
    let driver = Driver::open().map_err(failure)?;
    let (pid, who) = (target.number()?, &target.who);
    match target.state(&driver)? {
        DriverState::Running => {}
        DriverState::Locked => {
            return Err(failure(format!(
                "{who}: another program holds its CUDA calls for a checkpoint: wait until it is done, or continue the program with `memlab \
                 restore {}`",
                target.pid
            )));
        }
        DriverState::Checkpointed => {
            return Err(failure(format!("{who} is already checkpointed: `memlab restore {}` restores it", target.pid)));
        }
        DriverState::Failed => return Err(target.failed_for_good()),
        DriverState::Busy | DriverState::Unknown(_) => {
            return Err(failure(format!(
                "{who}: another program is checkpointing or restoring it: wait until it is done"
            )));
        }
    }
    let started = Instant::now();
    // Notify the process now. Later CUDA calls of the process would not return, and it could not answer.
    target.note(true);
    driver.lock(pid, timeout).map_err(|error| {
        target.note(false);
        failure(format!(
            "{who}: the CUDA driver could not hold its CUDA calls: {}: its work may take longer than --timeout",
            error.text
        ))
    })?;
    if let Err(error) = driver.checkpoint(pid) {
        // Without a checkpoint, the program must not stay locked.
        let after = match driver.unlock(pid) {
            Ok(()) => "the program continues".to_owned(),
            Err(unlock) => format!("and the program could not continue: {}", unlock.text),
        };
        target.note(false);
        return Err(failure(format!("{who}: the checkpoint failed: {}; {after}{}", error.text, hint(&error))));
    }
    Ok(started.elapsed())
}

fn hint(error: &DriverError) -> &'static str {
    if error.is_not_supported() {
        ". Drivers do not checkpoint memory that processes share (CUDA IPC, NCCL), and older ones no managed memory: \
         `memlab run --offload` can offload the rest"
    } else {
        ""
    }
}

/// Restores the process's memory and lets it continue.
///
/// A process that is only locked just continues.
///
/// # Errors
///
/// If the driver refuses.
pub fn restore(target: &Target) -> Result<Duration, Failure> {
    let driver = Driver::open().map_err(failure)?;
    let (pid, who) = (target.number()?, &target.who);
    let started = Instant::now();
    match target.state(&driver)? {
        DriverState::Checkpointed => restore_checkpointed(&driver, target, pid)?,
        DriverState::Locked => {}
        DriverState::Running => {
            // Another program may have restored it without its knowledge.
            target.note(false);
            return Err(failure(format!("{who} is not checkpointed: nothing to restore")));
        }
        DriverState::Failed => return Err(target.failed_for_good()),
        DriverState::Busy | DriverState::Unknown(_) => {
            return Err(failure(format!(
                "{who}: another program is checkpointing or restoring it: wait until it is done"
            )));
        }
    }
    driver.unlock(pid).map_err(|error| {
        failure(format!(
            "{who} has its memory back, but could not continue: {}: try `memlab restore {}` again",
            error.text, target.pid
        ))
    })?;
    target.note(false);
    Ok(started.elapsed())
}

fn restore_checkpointed(driver: &Driver, target: &Target, pid: i32) -> Result<(), Failure> {
    let Err(error) = driver.restore(pid) else { return Ok(()) };
    if driver.state(pid) == Ok(DriverState::Failed) {
        return Err(target.failed_for_good());
    }
    let what_next = if error.is_out_of_memory() {
        "it stays in host memory: make room on the device, then restore it again; --wait retries until there is room"
    } else {
        "it stays in host memory"
    };
    Err(Failure {
        message: format!("{}: the CUDA driver could not restore it: {}; {what_next}", target.who, error.text),
        is_full: error.is_out_of_memory(),
    })
}
