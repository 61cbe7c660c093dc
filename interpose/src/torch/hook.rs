//! What a hook on PyTorch is, and which versions have the function.

use std::ffi::{CStr, c_void};

/// Major and minor number.
pub type Version = (u32, u32);

/// A range of versions.
#[derive(Clone, Copy)]
pub struct Versions {
    since: Version,
    until: Option<Version>,
}

impl Versions {
    /// All that memlab supports.
    pub const ALL: Self = Self { since: (0, 0), until: None };

    pub const fn since(since: Version) -> Self {
        Self { since, until: None }
    }

    /// From one version to another, both within.
    pub const fn between(since: Version, until: Version) -> Self {
        Self { since, until: Some(until) }
    }

    /// `None`: the version could not be found out.
    pub fn contain(self, version: Option<Version>) -> bool {
        match version {
            Some(version) => self.since <= version && self.until.is_none_or(|until| version <= until),
            None => self.since == Self::ALL.since && self.until.is_none(),
        }
    }
}

/// One function of PyTorch's that memlab stands before.
pub struct Hook {
    /// Its mangled name.
    pub symbol: &'static CStr,
    /// The soname of the library that exports it.
    pub library: &'static CStr,
    /// memlab's function.
    pub address: *const c_void,
    /// The versions that are known to have it. In others memlab does not miss it.
    pub versions: Versions,
    /// Its name in PyTorch's source, and what cannot be told where it is missing.
    pub name: &'static str,
    pub lost: &'static str,
}

impl Hook {
    /// A function that every supported version has.
    pub const fn always(
        symbol: &'static CStr,
        library: &'static CStr,
        address: *const c_void,
        name: &'static str,
        lost: &'static str,
    ) -> Self {
        Self { symbol, library, address, versions: Versions::ALL, name, lost }
    }
}
