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
}
