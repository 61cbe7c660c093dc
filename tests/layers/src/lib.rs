//! Reads the `use` lines of a crate and checks that its files form layers: no file imports from a file above it, and imports
//! form no cycles.
//!
//! A crate draws its layers in the documentation of its `lib.rs` or `main.rs`, top layer first:
//!
//! ````text
//! //! # Layers
//! //!
//! //! ```text
//! //! hooks, control    what the process and its user call
//! //! recorder          appends records to the log
//! //! ```
//! ````
//!
//! Modules on one line form one layer and do not import from each other. A name such as `cuda::calls` moves a file out of
//! its folder's layer.
//!
//! # Layers
//!
//! ```text
//! check      violations of the rules
//! imports    imports between files
//! tree       the modules of a crate and their files
//! ```

pub mod check;
pub mod imports;
pub mod tree;
