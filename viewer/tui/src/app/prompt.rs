//! A line typed at the bottom of the screen: a filter, or a moment to go to.

/// Purpose of a typed line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromptKind {
    /// Filter for the rows.
    Filter,
    /// Moment to go to.
    GoTo,
}

/// A line being typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// Purpose.
    pub kind: PromptKind,
    /// Text so far.
    pub text: String,
    /// Error in the text.
    pub error: Option<String>,
}
