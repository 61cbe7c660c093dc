//! Reads the `use` lines of a crate and checks that its files form layers: no file imports from a file above it, and no
//! files import from each other in a circle.
//!
//! A crate draws its layers in the documentation of its `lib.rs` or `main.rs`, the top layer first:
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
//! Modules on one line are one layer and do not import from each other. A name such as `cuda::calls` takes a file out of
//! the layer of its folder.
//!
//! # Layers
//!
//! ```text
//! check      what breaks the rules
//! imports    which file imports from which
//! tree       the modules of a crate and their files
//! ```

pub mod check;
pub mod imports;
pub mod tree;
