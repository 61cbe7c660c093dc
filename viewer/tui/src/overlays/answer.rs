//! Result of a key in an overlay.

use memlab_follow::request::UiRequest;

/// Fate of an overlay after a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Stays open.
    Stay,
    /// Closes.
    Close,
    /// Closes and makes a request.
    Request(UiRequest),
    /// Stays open, and copies text.
    Copy(String),
    /// Closes, and goes to the line and moment of a finding, by its index.
    GoToFinding(usize),
}
