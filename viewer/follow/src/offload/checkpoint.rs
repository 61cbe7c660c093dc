//! A process's whole GPU state with the CUDA driver: its checkpoint takes everything off the device, the context too,
//! of any CUDA process, and gives it back. It is all or nothing, and the driver reports no progress.

use std::fmt;
use std::time::{Duration, Instant};

use crate::offload::control::Process;
use crate::offload::cuda_driver::{Driver, DriverError, DriverState};

/// Why it did not work.
#[derive(Clone, Debug)]
pub struct Failure {
    /// What happened, to what, and what to do.
    pub message: String,
    /// Whether the device is full, and another attempt may succeed.
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

/// A process, as the driver and as people call it.
#[derive(Clone, Debug)]
pub struct Target {
    /// Its number.
    pub pid: u32,
    /// `train.py (PID 42)`.
    pub who: String,
    /// Where it listens, if it is memlab's.
    pub process: Option<Process>,
}

impl Target {
    fn number(&self) -> Result<i32, Failure> {
        i32::try_from(self.pid).map_err(|_| failure(format!("there is no process {}", self.pid)))
    }

    fn state(&self, driver: &Driver) -> Result<DriverState, Failure> {
        driver.state(self.number()?).map_err(|error| {
            failure(format!(
                "{}: the CUDA driver does not know its state: {}: check that it is yours, uses CUDA and runs on this \
                 machine",
                self.who, error.text
            ))
        })
    }

    /// Tells the process, which reports it in its status.
    fn note(&self, value: bool) {
        if let Some(process) = &self.process {
            // It is as it is, whether the process has heard of it or not; the driver is asked before anything is done.
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

/// What the driver says of a process; `None`: nothing, or there is no driver that could.
pub fn state(target: &Target) -> Option<DriverState> {
    target.state(&Driver::open().ok()?).ok()
}

/// Takes everything that the process has on the devices.
///
/// # Errors
///
/// If the driver cannot; the process then continues, unless the message says otherwise.
pub fn offload(target: &Target, timeout: Duration) -> Result<Duration, Failure> {
    let driver = Driver::open().map_err(failure)?;
    let (pid, who) = (target.number()?, &target.who);
    match target.state(&driver)? {
        DriverState::Running => {}
        DriverState::Locked => {
            return Err(failure(format!(
                "{who}: another program holds its CUDA calls for a checkpoint: wait for it to end, or continue the program with `memlab \
                 restore {}`",
                target.pid
            )));
        }
        DriverState::Checkpointed => {
            return Err(failure(format!(
                "{who} is checkpointed already: `memlab restore {}` brings it back",
                target.pid
            )));
        }
        DriverState::Failed => return Err(target.failed_for_good()),
        DriverState::Busy | DriverState::Unknown(_) => {
            return Err(failure(format!("{who}: another program checkpoints or restores it: wait for it to end")));
        }
    }
    let started = Instant::now();
    // Said beforehand: what the process asks the driver from now on would not come back, and it could not answer us.
    target.note(true);
    driver.lock(pid, timeout).map_err(|error| {
        target.note(false);
        failure(format!(
            "{who}: the CUDA driver could not hold its CUDA calls: {}: its work may take longer than --timeout",
            error.text
        ))
    })?;
    if let Err(error) = driver.checkpoint(pid) {
        // The program must not stay locked for nothing.
        let after = match driver.unlock(pid) {
            Ok(()) => "the program continues".to_owned(),
            Err(unlock) => format!("and the program could not be continued: {}", unlock.text),
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

/// Gives it back and lets the process go on; of one that is only locked, the latter.
///
/// # Errors
///
/// If the driver cannot.
pub fn restore(target: &Target) -> Result<Duration, Failure> {
    let driver = Driver::open().map_err(failure)?;
    let (pid, who) = (target.number()?, &target.who);
    let started = Instant::now();
    match target.state(&driver)? {
        DriverState::Checkpointed => restore_checkpointed(&driver, target, pid)?,
        DriverState::Locked => {}
        DriverState::Running => {
            // It may have been restored by another program, without its knowledge.
            target.note(false);
            return Err(failure(format!("{who} is not checkpointed: there is nothing to restore")));
        }
        DriverState::Failed => return Err(target.failed_for_good()),
        DriverState::Busy | DriverState::Unknown(_) => {
            return Err(failure(format!("{who}: another program checkpoints or restores it: wait for it to end")));
        }
    }
    driver.unlock(pid).map_err(|error| {
        failure(format!(
            "{who} has its memory back, but could not be continued: {}: try `memlab restore {}` again",
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
        "it stays in host memory: make room on the device, then restore it again; --wait tries until there is room"
    } else {
        "it stays in host memory"
    };
    Err(Failure {
        message: format!("{}: the CUDA driver could not restore it: {}; {what_next}", target.who, error.text),
        is_full: error.is_out_of_memory(),
    })
}
