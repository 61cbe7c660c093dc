//! Hooks on PyTorch's own libraries: the caching allocator's reports, the autograd engine, cuBLAS workspaces.
//!
//! PyTorch calls these functions across its libraries by their mangled names, so exporting the same names from a
//! preloaded library intercepts them. They are C++ functions that may throw through us, hence `extern "C-unwind"`.

pub mod allocator;
pub mod autograd;
pub mod expected;
pub mod workspace;

use std::ffi::{CStr, c_void};

use expected::Versions;

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
    const fn always(
        symbol: &'static CStr,
        library: &'static CStr,
        address: *const c_void,
        name: &'static str,
        lost: &'static str,
    ) -> Self {
        Self { symbol, library, address, versions: Versions::ALL, name, lost }
    }
}

/// Every hook on PyTorch.
pub fn hooks() -> impl Iterator<Item = Hook> {
    allocator::hooks().into_iter().chain(autograd::hooks()).chain(workspace::hooks())
}
