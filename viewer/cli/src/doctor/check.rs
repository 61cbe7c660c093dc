//! The result of one check.

use serde::Serialize;

/// Outcome of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckState {
    /// Works.
    Ok,
    /// Recording works, but another feature does not, or some programs are not recorded in full.
    Warning,
    /// Programs cannot be recorded.
    Cannot,
}

impl CheckState {
    /// The state as a word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Cannot => "cannot",
        }
    }
}

/// One line of the results.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Name of the checked component.
    pub name: &'static str,
    /// Outcome of the check.
    pub state: CheckState,
    /// Description of the component and its consequences.
    pub found: String,
    /// Advice, if something does not work.
    pub advice: Option<String>,
}

impl Check {
    /// A component that works.
    pub fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, state: CheckState::Ok, found: found.into(), advice: None }
    }

    /// A component that works in part.
    pub fn warning(name: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { name, state: CheckState::Warning, found: found.into(), advice: Some(advice.into()) }
    }

    /// A component that makes recording impossible.
    pub fn cannot(name: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { name, state: CheckState::Cannot, found: found.into(), advice: Some(advice.into()) }
    }
}
