//! Scopes of lines that count allocations: lines of the program, or lines of installed packages too.

use std::ops::{Index, IndexMut};

use serde::{Deserialize, Serialize};

use super::code_origin::CodeOrigin;

/// Scope of lines that count allocations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Lines of the program. An allocation of a library counts at the line that called it.
    #[default]
    Users,
    /// Lines of the program and of installed packages. The innermost of both counts.
    Libraries,
}

/// Number of scopes.
pub(crate) const SCOPES: usize = Scope::ALL.len();

impl Scope {
    /// All scopes.
    pub(crate) const ALL: [Self; 2] = [Self::Users, Self::Libraries];

    /// Returns the name of its lines in the JSON of reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Users => "lines",
            Self::Libraries => "library_lines",
        }
    }

    /// Returns the rank of an origin in this scope. The frame with the smallest rank counts the stack.
    pub(crate) fn rank(self, origin: CodeOrigin) -> CodeOrigin {
        match (self, origin) {
            (Self::Libraries, CodeOrigin::Library) => CodeOrigin::User,
            _ => origin,
        }
    }

    /// Returns true if lines of this origin are shown when a stack has any.
    pub fn shows(self, origin: CodeOrigin) -> bool {
        self.rank(origin) == CodeOrigin::User
    }
}

/// One value for each scope.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ByScope<T>([T; SCOPES]);

impl<T> ByScope<T> {
    /// Creates one value per scope with `value`.
    pub fn from_fn(value: impl FnMut(Scope) -> T) -> Self {
        Self(Scope::ALL.map(value))
    }

    /// Returns each scope with its value.
    pub fn iter(&self) -> impl Iterator<Item = (Scope, &T)> {
        std::iter::zip(Scope::ALL, &self.0)
    }

    /// Returns the values, in the order of [`Scope::ALL`].
    #[inline]
    pub(crate) fn values(&self) -> &[T; SCOPES] {
        &self.0
    }

    /// Returns the values, in the order of [`Scope::ALL`].
    #[inline]
    pub(crate) fn values_mut(&mut self) -> &mut [T; SCOPES] {
        &mut self.0
    }
}

impl<T> Index<Scope> for ByScope<T> {
    type Output = T;

    #[inline]
    fn index(&self, scope: Scope) -> &T {
        &self.0[scope as usize]
    }
}

impl<T> IndexMut<Scope> for ByScope<T> {
    #[inline]
    fn index_mut(&mut self, scope: Scope) -> &mut T {
        &mut self.0[scope as usize]
    }
}
