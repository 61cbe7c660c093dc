//! Errors, with a text that states the event, its object and the next step.

use std::path::PathBuf;
use std::{fmt, io};

/// Result of a function of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Cause of a failed call.
///
/// The text is for the user.
#[derive(Debug)]
pub enum Error {
    /// An invalid argument.
    Invalid(String),
    /// Out of memory.
    Memory(String),
    /// A file that could not be read.
    File {
        /// The file.
        path: PathBuf,
        /// Error from the system.
        error: io::Error,
    },
    /// A failed call of the driver or the system, or a state that makes the call impossible.
    Failed(String),
}

impl Error {
    /// Adds the operation to the text of a failed call.
    pub fn while_doing(self, what: impl FnOnce() -> String) -> Self {
        match self {
            Self::Failed(text) => Self::Failed(format!("{text}, while {}", what())),
            other => other,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Invalid(text) | Self::Memory(text) | Self::Failed(text) => f.write_str(text),
            Self::File { path, error } => write!(f, "{}: {error}", path.display()),
        }
    }
}

impl std::error::Error for Error {}

/// Formats a size: "1.5 GiB".
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} bytes");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes_have_binary_units() {
        // GIVEN sizes at the borders of units, WHEN they are formatted, THEN each uses the unit that keeps it short.
        assert_eq!(size(0), "0 bytes");
        assert_eq!(size(1023), "1023 bytes");
        assert_eq!(size(1536), "1.5 KiB");
        assert_eq!(size((1 << 30) - 1), "1.0 GiB");
        assert_eq!(size(3 << 40), "3.0 TiB");
    }
}
