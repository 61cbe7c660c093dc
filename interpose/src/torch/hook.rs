//! A hook on PyTorch, and the versions that have its function.

use std::ffi::{CStr, c_void};

/// Converts a symbol literal, which attributes also accept, to a `CStr`.
macro_rules! c_symbol {
    ($symbol:literal) => {
        const {
            match CStr::from_bytes_with_nul(concat!($symbol, "\0").as_bytes()) {
                Ok(symbol) => symbol,
                Err(_) => unreachable!(),
            }
        }
    };
}

pub(super) use c_symbol;

/// Major and minor number.
pub type Version = (u32, u32);

/// A range of versions.
#[derive(Clone, Copy)]
pub struct Versions {
    since: Version,
    until: Option<Version>,
}

impl Versions {
    /// All versions that memlab supports.
    pub const ALL: Self = Self { since: (0, 0), until: None };

    pub const fn since(since: Version) -> Self {
        Self { since, until: None }
    }

    /// Range of versions, including both ends.
    pub const fn between(since: Version, until: Version) -> Self {
        Self { since, until: Some(until) }
    }

    /// Returns true if the range contains the version; `None` is an unknown version.
    pub fn contain(self, version: Option<Version>) -> bool {
        match version {
            Some(version) => self.since <= version && self.until.is_none_or(|until| version <= until),
            None => self.since == Self::ALL.since && self.until.is_none(),
        }
    }
}

/// A PyTorch function that memlab interposes.
pub struct TorchHook {
    /// Mangled name of the function.
    pub symbol: &'static CStr,
    /// Soname of the library that exports it.
    pub library: &'static CStr,
    /// memlab's function.
    pub address: *const c_void,
    /// Versions known to have it.
    ///
    /// In others its absence is not reported.
    pub versions: Versions,
    /// Name in PyTorch's source, and the gap in the recording without it.
    pub name: &'static str,
    pub lost: &'static str,
}

impl TorchHook {
    /// Hook on a function that every supported version has.
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
