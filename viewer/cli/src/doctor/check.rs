//! What one look says.

use serde::Serialize;

/// Whether it works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckState {
    /// It works.
    Ok,
    /// Something beside recording does not work, or some programs are not recorded in full.
    Warning,
    /// Programs cannot be recorded.
    Cannot,
}

impl CheckState {
    /// Its word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Cannot => "cannot",
        }
    }
}

/// One line of what was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was looked at.
    pub name: &'static str,
    /// Whether it works.
    pub state: CheckState,
    /// What is there, and what that means.
    pub found: String,
    /// What to do, if something does not work.
    pub advice: Option<String>,
}

impl Check {
    /// It works.
    pub fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, state: CheckState::Ok, found: found.into(), advice: None }
    }

    /// It works in part.
    pub fn warning(name: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { name, state: CheckState::Warning, found: found.into(), advice: Some(advice.into()) }
    }

    /// Recording does not work because of it.
    pub fn cannot(name: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { name, state: CheckState::Cannot, found: found.into(), advice: Some(advice.into()) }
    }
}
