//! Errors and their exit codes: 2 for bad usage or input, 1 for failures during the work, 130 for Ctrl-C.

use std::process::Command;
use std::{fmt, io};

use memlab_trace::ReadError;

/// Error in the input or the usage. The message states what happened, to what, and what to do next.
#[derive(Debug)]
pub struct BadInput(pub String);

impl fmt::Display for BadInput {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for BadInput {}

/// Makes an error from a message about the input.
pub fn bad_input(message: impl Into<String>) -> anyhow::Error {
    anyhow::Error::new(BadInput(message.into()))
}

/// Failure to start the command of `memlab run` or `memlab simulate`, with the exit code of shells and `env` (126 or
/// 127).
#[derive(Debug)]
pub struct StartError {
    /// Description of the failure, with the next action.
    pub message: String,
    /// 127: not found; 126: found, but it cannot be executed.
    pub code: u8,
}

impl StartError {
    /// Makes an error for a command that the system does not start.
    pub fn of(command: &Command, error: &io::Error) -> Self {
        let program = command.get_program().to_string_lossy();
        let code = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
        Self { message: format!("{program}: cannot be started: {error}"), code }
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl std::error::Error for StartError {}

/// Ctrl-C ended a command early; the message states what happens to the unfinished work.
#[derive(Debug)]
pub struct Interrupted(pub String);

impl fmt::Display for Interrupted {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Interrupted {}

/// Makes an error from a message about work that Ctrl-C interrupted.
pub fn interrupted(message: impl Into<String>) -> anyhow::Error {
    anyhow::Error::new(Interrupted(message.into()))
}

/// Exit code for `error`.
pub fn exit_code(error: &anyhow::Error) -> u8 {
    if let Some(cannot_start) = error.downcast_ref::<StartError>() {
        cannot_start.code
    } else if error.is::<Interrupted>() {
        130
    } else if error.is::<BadInput>() || error.is::<ReadError>() {
        2
    } else {
        1
    }
}
