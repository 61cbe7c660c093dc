//! Errors of decoding a line.

use std::borrow::Cow;
use std::fmt;

/// Error of decoding a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodeError {
    reason: Cow<'static, str>,
}

impl DecodeError {
    pub(super) const fn new(reason: &'static str) -> Self {
        Self { reason: Cow::Borrowed(reason) }
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for DecodeError {}

impl From<serde_json::Error> for DecodeError {
    fn from(error: serde_json::Error) -> Self {
        // The text ends in a position within the line; readers report the line number instead.
        let text = error.to_string();
        let text = text.split(" at line ").next().unwrap_or(&text);
        Self { reason: Cow::Owned(text.to_owned()) }
    }
}
