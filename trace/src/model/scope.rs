//! Which lines count allocations: those of the program, or those of installed packages too.

use serde::{Deserialize, Serialize};

use super::code_origin::CodeOrigin;

/// Whose lines answer for what was allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// The user's: what a library allocated counts at the line that called it.
    #[default]
    Users,
    /// Those of installed packages too: the innermost of either.
    Libraries,
}

/// How many scopes there are.
pub(crate) const SCOPES: usize = Scope::ALL.len();

impl Scope {
    /// All scopes.
    pub(crate) const ALL: [Self; 2] = [Self::Users, Self::Libraries];

    /// What its lines are called in reports' JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Users => "lines",
            Self::Libraries => "library_lines",
        }
    }

    /// How well a frame stands for its stack; the smaller, the better.
    pub(crate) fn rank(self, origin: CodeOrigin) -> CodeOrigin {
        match (self, origin) {
            (Self::Libraries, CodeOrigin::Library) => CodeOrigin::User,
            _ => origin,
        }
    }

    /// Whether lines of this kind are shown, where there are any.
    pub fn shows(self, origin: CodeOrigin) -> bool {
        self.rank(origin) == CodeOrigin::User
    }
}
