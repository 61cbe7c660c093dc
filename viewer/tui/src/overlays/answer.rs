//! What an overlay does with a key.

use memlab_follow::request::UiRequest;

/// What becomes of an overlay after a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It stays open.
    Stay,
    /// It closes.
    Close,
    /// It closes, and something is to be done.
    Request(UiRequest),
}
