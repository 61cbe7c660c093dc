//! A line that is typed at the bottom of the screen: a filter, or a moment to go to.

/// What a line is typed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromptKind {
    /// Which rows to show.
    Filter,
    /// Which moment to go to.
    GoTo,
}

/// A line being typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// What for.
    pub kind: PromptKind,
    /// So far.
    pub text: String,
    /// What is wrong with it.
    pub error: Option<String>,
}
